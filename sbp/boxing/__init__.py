"""Boxing: from some words of an array to others, the only communication there is.

`steps` says what one collective can change and how many bytes it sends, `paths` finds the cheapest
chain. A step acts on a set of axes that change the same way; n is the number of devices over them,
b the bytes of the array gathered over them, everything else as it is:

    step                                   bytes a device sends
    all-gather          S -> B             (n-1)/n b
    reduce-scatter      P -> S             (n-1)/n b
    all-reduce          P -> B             2 (n-1)/n b
    all-to-all          S(i) -> S(j)       (n-1)/n^2 b
    all-to-all, max     P.max -> S         (n-1)/n b
    collective-permute  blocks move        the block after, where it lies inside one block before
    slice, mask, place  B -> S, B -> P, S -> P    0
    relabel             B -> P.max         0
"""

from sbp.boxing.paths import BoxingTable as BoxingTable
from sbp.boxing.paths import MergedTable as MergedTable
from sbp.boxing.paths import Price as Price
from sbp.boxing.paths import boxing_path as boxing_path
from sbp.boxing.paths import format_nbytes as format_nbytes
from sbp.boxing.paths import format_step as format_step
from sbp.boxing.paths import format_steps as format_steps
from sbp.boxing.paths import wire_bytes_first as wire_bytes_first
from sbp.boxing.permutations import permutation as permutation
from sbp.boxing.permutations import permuted_axes as permuted_axes
from sbp.boxing.steps import LOCAL_KINDS as LOCAL_KINDS
from sbp.boxing.steps import Kind as Kind
from sbp.boxing.steps import Step as Step
from sbp.boxing.steps import legal_words as legal_words
from sbp.boxing.steps import why_illegal as why_illegal
