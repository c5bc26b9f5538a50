"""One flat graph of choices for a whole program: who may choose what, what boxing costs between.

`domains` says what can be chosen, `flow` what is known before choosing, `builder` makes the nodes
of `choices`, `boxings` the edges; `symmetry` leaves the order of equal axes open.
"""

from sbp.graph.boxings import BoxingGraph as BoxingGraph
from sbp.graph.boxings import Tables as Tables
from sbp.graph.boxings import connect as connect
from sbp.graph.builder import build_graph as build_graph
from sbp.graph.builder import call_of as call_of
from sbp.graph.builder import contraction_flops as contraction_flops
from sbp.graph.builder import result_name as result_name
from sbp.graph.builder import stacked as stacked
from sbp.graph.choices import Boundary as Boundary
from sbp.graph.choices import Graph as Graph
from sbp.graph.choices import Node as Node
from sbp.graph.choices import Port as Port
from sbp.graph.domains import Held as Held
from sbp.graph.domains import Mesh as Mesh
from sbp.graph.domains import call_domain as call_domain
from sbp.graph.domains import check_words as check_words
from sbp.graph.flow import carry_range as carry_range
from sbp.graph.flow import is_fusible as is_fusible
from sbp.graph.flow import is_kernel as is_kernel
from sbp.graph.flow import reads_fused as reads_fused
from sbp.graph.symmetry import all_of_a_kind as all_of_a_kind
from sbp.graph.symmetry import axes_alike as axes_alike
from sbp.graph.symmetry import one_of_each_kind as one_of_each_kind
