"""Laws of boxing: which words there are, what a step may do, and that paths are cheapest."""

import dataclasses
import itertools
import math

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from sbp.algebra import P_MAX, P_MIN, ArrayType, B, P, Split, Word
from sbp.boxing import (
    BoxingTable,
    MergedTable,
    boxing_path,
    format_nbytes,
    format_steps,
    legal_words,
    why_illegal,
    wire_bytes_first,
)
from sbp.errors import BoxingError

F32 = np.dtype("float32")
KINDS = (P, P_MAX, P_MIN)
S0, S1, S2 = map(Split, range(3))


def f32(*shape):
    return ArrayType(shape, F32)


def wire_nbytes(steps):
    return sum(step.nbytes for step in steps)


def kinds(src, dst, array, sizes):
    return [step.kind for step in boxing_path(src, dst, array, sizes)]


@st.composite
def tables(draw, extents=(1, 2, 4, 6, 8, 16)):
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 4), (3, 2)]))
    shape = draw(st.lists(st.sampled_from(extents), max_size=2 if len(sizes) > 2 else 3))
    partials = draw(st.sets(st.sampled_from(KINDS), max_size=2))
    wire, local, each = (draw(st.integers(0, 9)) for _ in range(3))
    return BoxingTable(
        f32(*shape),
        sizes,
        partials,
        lambda step: wire * step.nbytes + local * step.local_nbytes + each,
    )


def test_everything_broadcast_comes_first():
    words = legal_words(f32(8, 8), (2, 4), KINDS)
    assert words[0] == (B, B)
    assert len(set(words)) == len(words) == 30


def test_number_of_words():
    assert len(legal_words(f32(64, 64, 64), (8,), (P,))) == 5
    assert len(legal_words(f32(64, 64, 64), (2, 4), (P,))) == 25
    assert len(legal_words(f32(64, 64, 64), (2, 2, 2), (P,))) == 125


def test_nested_splits_divide_what_the_outer_axis_left():
    words = legal_words(f32(4), (2, 4))
    assert (S0, B) in words
    assert (B, S0) in words
    assert (S0, S0) not in words


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", set(KINDS)),
        ("int8", set(KINDS)),
        ("bool", {P_MAX, P_MIN}),
        ("complex64", {P}),
        (ml_dtypes.bfloat16, set(KINDS)),
    ],
)
def test_partial_words_a_dtype_has(dtype, expected):
    words = legal_words(ArrayType((), np.dtype(dtype)), (2,), KINDS)
    assert {word for (word,) in words} == {B, *expected}


def test_random_keys_have_no_partial_words():
    @dataclasses.dataclass(frozen=True)
    class KeyType:
        itemsize: int = 8

        def __str__(self):
            return "key<fry>"

    array = ArrayType((4,), KeyType())
    assert legal_words(array, (2,), KINDS) == ((B,), (S0,))
    reason = why_illegal(array, (P,), (2,), ("dp",))
    assert reason == "P on 'dp': elements of key<fry> cannot be added."


def test_partials_of_two_kinds_do_not_mix():
    assert (P, P_MAX) not in legal_words(f32(), (2, 2), KINDS)
    assert why_illegal(f32(), (P, P_MAX), (2, 1)) is None, "an axis of one device reduces nothing"


def test_an_axis_of_one_device_has_one_word():
    words = legal_words(f32(8, 8), (2, 4), KINDS)
    assert legal_words(f32(8, 8), (1, 2, 1, 4), KINDS) == tuple((B, a, B, b) for a, b in words)
    assert legal_words(f32(8, 8), (1, 1), KINDS) == ((B, B),)


@given(tables())
def test_cost_is_a_distance(table):
    cost = table.cost
    assert np.isfinite(cost).all(), "everything can be reached"
    assert (np.diagonal(cost) == 0).all()
    assert (cost == np.floor(cost)).all()
    through = cost[:, :, None] + cost[None, :, :]
    assert (cost <= through.min(1)).all(), "no detour is cheaper"


@given(tables(), st.data())
def test_path_is_a_chain_that_costs_what_the_table_says(table, data):
    src, dst = (data.draw(st.sampled_from(table.words)) for _ in range(2))
    steps = table.path(src, dst)
    ends = [src, *(step.dst for step in steps)]
    assert [step.src for step in steps] == ends[:-1]
    assert ends[-1] == dst
    assert all(words in table.index for words in ends)
    assert len(set(ends)) == len(ends)
    table_price = {(s.src, s.dst): c for s, c in zip(*_priced(table), strict=True)}
    total = sum(table_price[step.src, step.dst] for step in steps)
    assert total == table.cost[table.index[src], table.index[dst]]


def _priced(table):
    steps = [table.path(s.src, s.dst) for s in table.steps()]
    single = [path[0] for path in steps if len(path) == 1]
    return single, [table.cost[table.index[s.src], table.index[s.dst]] for s in single]


@given(tables(extents=(8,)))
def test_paths_from_one_source_are_a_tree(table):
    src = table.words[-1]
    for dst in table.words:
        path = table.path(src, dst)
        if path:
            assert path[:-1] == table.path(src, path[-1].src)


def brute_force_cost(table, price):
    """Dijkstra by relaxing every step until nothing changes."""
    cost = {(a, b): 0 if a == b else math.inf for a in table.words for b in table.words}
    steps = list(table.steps())
    changed = True
    while changed:
        changed = False
        for source, step in itertools.product(table.words, steps):
            through = cost[source, step.src] + (0 if step.kind == "relabel" else price(step))
            if through < cost[source, step.dst]:
                cost[source, step.dst], changed = through, True
    return np.array([[cost[a, b] for b in table.words] for a in table.words])


@pytest.mark.parametrize("sizes", [(4,), (2, 4), (2, 1)])
def test_cost_equals_that_of_a_plain_search(sizes):
    def price(step):
        return 3 * step.nbytes + step.local_nbytes + 7

    table = BoxingTable(f32(8, 8), sizes, KINDS, price)
    np.testing.assert_array_equal(table.cost, brute_force_cost(table, price))


def test_equally_cheap_paths_have_the_fewest_steps():
    free = BoxingTable(f32(8, 8), (2, 2), KINDS, lambda step: 0)
    assert (free.cost == 0).all()
    assert [step.kind for step in free.path((P, P), (B, B))] == ["all-reduce"]


def test_tables_are_the_same_every_time():
    first, second = (BoxingTable(f32(8, 8), (2, 4), KINDS) for _ in range(2))
    for words in first.words:
        assert first.path((P, S0), words) == second.path((P, S0), words)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2)])
def test_partial_to_split_and_split_to_broadcast_are_one_collective(dim, sizes):
    array, n = f32(16, 8, 24), 8
    everywhere = (Split(dim),) * len(sizes)
    partial, whole = (P,) * len(sizes), (B,) * len(sizes)
    (scatter,) = boxing_path(partial, everywhere, array, sizes)
    (gather,) = boxing_path(everywhere, whole, array, sizes)
    assert (scatter.kind, gather.kind) == ("reduce-scatter", "all-gather")
    assert scatter.nbytes == gather.nbytes == (n - 1) * array.nbytes // n
    assert scatter.axes == gather.axes == tuple(range(len(sizes)))


@pytest.mark.parametrize("word", [P_MAX, P_MIN])
def test_maximum_to_split_is_one_all_to_all(word):
    (step,) = boxing_path((word, word), (S1, S1), f32(4, 16), (2, 4))
    assert step.kind == "all-to-all"
    assert step.nbytes == 7 * 4 * 16 * 4 // 8
    assert step.local_nbytes == 4 * 16 * 4 + 4 * 16 * 4 // 8, "what arrives, and its maximum"


def test_all_reduce_over_two_axes_is_one_step():
    (step,) = boxing_path((P, P), (B, B), f32(1024), (2, 4))
    assert step.kind == "all-reduce"
    assert step.nbytes == 2 * 7 * 4096 // 8, "1.75 b; axis after axis would send 2.5 b"
    (scalar,) = boxing_path((P,), (B,), f32(), (8,))
    assert scalar.nbytes == 7, "rings of a scalar are rounded up to whole bytes"


def test_all_to_all_bytes():
    (step,) = boxing_path((S0,), (S1,), f32(16, 16), (8,))
    assert (step.kind, step.nbytes) == ("all-to-all", 7 * 1024 // 64)


def test_local_steps_send_nothing():
    array, sizes = f32(8), (4,)
    for src, dst, kind, written in [
        (B, S0, "slice", 8),
        (B, P, "mask", 32),
        (S0, P, "place", 32),
        (S0, P_MAX, "place", 32),
        (B, P_MAX, "relabel", 0),
        (B, P_MIN, "relabel", 0),
    ]:
        (step,) = boxing_path((src,), (dst,), array, sizes)
        assert (step.kind, step.nbytes, step.local_nbytes) == (kind, 0, written)
        assert step.is_local


@pytest.mark.parametrize("shape", [(16,), (16, 16), (16, 16, 16)])
def test_moving_a_split_between_equal_axes_is_one_permute(shape):
    array = f32(*shape)
    for sizes, src, dst, axes in [
        ((2, 2), (S0, B), (B, S0), (0, 1)),
        ((2, 2, 2), (B, B, S0), (S0, B, B), (0, 2)),
        ((4, 2, 4), (B, B, S0), (S0, B, B), (0, 2)),
        ((2, 4), (B, S0), (S0, S0), (0, 1)),
    ]:
        (step,) = boxing_path(src, dst, array, sizes)
        assert (step.kind, step.axes) == ("collective-permute", axes)
        blocks = math.prod(n for word, n in zip(dst, sizes, strict=True) if word == S0)
        assert step.nbytes == array.nbytes // blocks


def test_permute_to_a_finer_axis_sends_the_new_block():
    (step,) = boxing_path((S0, B), (B, S0), f32(64), (2, 4))
    assert (step.kind, step.nbytes) == ("collective-permute", 64)


def test_swapping_the_axes_of_two_dims_is_one_permute():
    (step,) = boxing_path((S0, S1), (S1, S0), f32(8, 8), (2, 2))
    assert (step.kind, step.nbytes) == ("collective-permute", 64)


def test_an_inner_split_of_the_same_dim_blocks_the_outer_axis():
    for table_step in BoxingTable(f32(16, 16), (2, 4), KINDS).steps():
        if table_step.kind not in ("collective-permute", "relabel") and table_step.axes == (0,):
            inner = table_step.src[1]
            touched = {table_step.src[0], table_step.dst[0]}
            assert not (isinstance(inner, Split) and inner in touched), table_step
    assert "all-gather" not in kinds((S0, S0), (B, S0), f32(16, 16), (2, 4))[:1]


def test_all_axes_of_a_dim_may_change_together():
    (step,) = boxing_path((S0, S0), (S1, S1), f32(16, 16), (2, 4))
    assert (step.kind, step.axes) == ("all-to-all", (0, 1))


def test_axes_of_one_device_cost_nothing():
    array, sizes = f32(8, 8), (1, 4)
    table = BoxingTable(array, sizes, KINDS, lambda step: step.nbytes * 1000 + 1)
    for old, new in itertools.permutations((B, S0, S1, *KINDS), 2):
        assert table.cost[table.index[old, S0], table.index[new, S0]] == 0
        (step,) = table.path((old, S0), (new, S0))
        assert (step.kind, step.axes, step.nbytes, step.local_nbytes) == ("relabel", (0,), 0, 0)
    # A split nested in an axis of one device is not nested at all.
    assert [step.kind for step in table.path((B, S0), (B, B))] == ["all-gather"]


def test_nothing_to_do_is_no_step():
    assert boxing_path((S0, P), (S0, P), f32(8), (2, 4)) == ()


def test_arrays_without_elements_move_for_free():
    (step,) = boxing_path((S0,), (B,), f32(0, 4), (8,))
    assert (step.kind, step.nbytes) == ("all-gather", 0)


def test_price_decides_the_way():
    array, sizes = f32(16, 16), (2, 4)
    few = BoxingTable(array, sizes, (), lambda step: step.nbytes + 10**6)
    thrifty = BoxingTable(array, sizes, (), wire_bytes_first)
    few_steps, thrifty_steps = (t.path((S0, S0), (B, S0)) for t in (few, thrifty))
    assert len(few_steps) < len(thrifty_steps)
    assert wire_nbytes(few_steps) > wire_nbytes(thrifty_steps)


def test_wire_bytes_are_symmetric_under_renaming_of_dims():
    table = BoxingTable(f32(16, 16), (2, 4), (P,))
    swap: dict[Word, Word] = {S0: S1, S1: S0}
    for src, dst in itertools.product(table.words, repeat=2):
        twin = [tuple(swap.get(word, word) for word in words) for words in (src, dst)]
        assert (
            table.cost[table.index[src], table.index[dst]]
            == table.cost[table.index[twin[0]], table.index[twin[1]]]
        )


def test_many_sources_share_one_graph_but_not_their_prices():
    small, large = (BoxingTable(f32(n), (2, 4), (P,)) for n in (8, 64))
    assert small.words is large.words
    np.testing.assert_array_equal(8 * small.cost, large.cost)


def test_format_steps():
    steps = boxing_path((P, S0), (B, B), f32(512, 96), (2, 4))
    assert format_steps(steps, ("dp", "tp")) == (
        "P -> B on dp: all-reduce, 48 KiB/device\nS(0) -> B on tp: all-gather, 144 KiB/device"
    )
    (move,) = boxing_path((S0, B), (B, S0), f32(16), (2, 2))
    assert format_steps([move], ("dp", "tp")) == (
        "S(0), B -> B, S(0) on dp, tp: collective-permute, 32 B/device"
    )
    (cut,) = boxing_path((B,), (S0,), f32(16), (2,))
    assert format_steps([cut], ("dp",)) == "B -> S(0) on dp: slice"


def test_format_nbytes():
    assert [format_nbytes(n) for n in (0, 96, 1536, 48 << 10, 3 << 20, 5 << 40, 3 << 50)] == [
        "0 B", "96 B", "1.5 KiB", "48 KiB", "3 MiB", "5 TiB", "3072 TiB",
    ]  # fmt: skip


ERRORS = {
    "uneven": (
        (f32(10, 64), (S0, B), (B, B), (4, 2)),
        "f32[10,64] cannot be (dp: S(0), tp: B).\n"
        "  S(0) on 'dp': the axis has 4 devices, and the dim has size 10.\n"
        "  Split needs equal slices; 10 is not a multiple of 4.\n"
        "Fix one of: 'dp: S(1)' | 'dp: B'",
    ),
    "uneven inner": (
        (f32(6), (B, B), (S0, S0), (2, 2)),
        "f32[6] cannot be (dp: S(0), tp: S(0)).\n"
        "  S(0) on 'tp': the axis has 2 devices, and the dim has size 3 left.\n"
        "  Split needs equal slices; 3 is not a multiple of 2.\n"
        "Fix one of: 'dp: B' | 'tp: B'",
    ),
    "no such dim": (
        (f32(8), (Split(1), B), (B, B), (2, 2)),
        "f32[8] cannot be (dp: S(1), tp: B).\n"
        "  S(1) on 'dp': the array has 1 dims, counted from 0.\n"
        "Fix one of: 'dp: S(0)' | 'dp: B'",
    ),
    "no sum": (
        (ArrayType((8,), np.dtype(bool)), (P, B), (B, B), (2, 2)),
        "bool[8] cannot be (dp: P, tp: B).\n"
        "  P on 'dp': elements of bool cannot be added.\n"
        "Fix one of: 'dp: S(0)' | 'dp: B'",
    ),
    "mixed": (
        (f32(8), (P, P_MAX), (B, B), (2, 2)),
        "f32[8] cannot be (dp: P, tp: P.max).\n"
        "  P and P.max of one array: partials of two kinds do not mix.\n"
        "Fix one of: 'dp: S(0)' | 'dp: B' | 'tp: S(0)' | 'tp: B'",
    ),
    "too few words": (
        (f32(8), (S0,), (B, B), (2, 2)),
        "f32[8] cannot be (S(0)).\n"
        "  A mesh of 2 axes needs 2 words; these are 1.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_impossible_words_are_refused(case):
    (array, src, dst, sizes), text = ERRORS[case]
    with pytest.raises(BoxingError) as caught:
        boxing_path(src, dst, array, sizes, axes=("dp", "tp"))
    assert str(caught.value) == text


def test_table_refuses_words_it_was_not_built_for():
    table = BoxingTable(f32(8), (2, 4), (P,))
    with pytest.raises(BoxingError, match=r"words \(P.max, B\) are not in the table of f32\[8\]"):
        table.path((P_MAX, B), (B, B))


@given(
    st.sampled_from([(2, 2), (2, 2, 2), (3, 3), (2, 1, 2)]),
    st.lists(st.sampled_from((1, 2, 4, 9, 12)), max_size=2),
    st.sets(st.sampled_from(KINDS), max_size=2),
    st.integers(0, 9),
    st.integers(1, 9),
)
def test_a_merged_table_is_that_of_the_nearest_words_of_a_kind(sizes, shape, partials, local, wire):
    def price(step):
        return wire * step.nbytes + local * step.local_nbytes + len(step.axes)

    axes = tuple(axis for axis, size in enumerate(sizes) if size > 1)
    table = BoxingTable(f32(*shape), sizes, partials, price)
    merged = MergedTable(f32(*shape), sizes, partials, price, axes)
    kinds = [merged.index[words] for words in table.words]

    def kind(words):
        return sorted(map(str, (words[axis] for axis in axes)))

    for one, other in itertools.combinations(range(len(kinds)), 2):
        alike = kind(table.words[one]) == kind(table.words[other])
        rest = all(
            table.words[one][axis] == table.words[other][axis]
            for axis in range(len(sizes))
            if axis not in axes
        )
        assert (kinds[one] == kinds[other]) == (alike and rest)
    count = len(merged.words)
    assert [merged.index[words] for words in merged.words] == list(range(count))
    # Boxing with exchanges for nothing: from any words of a kind, in any number of goes.
    least = np.full((count, count), np.inf)
    np.minimum.at(
        least, (np.repeat(kinds, len(kinds)), np.tile(kinds, len(kinds))), table.cost.ravel()
    )
    for middle in range(count):
        least = np.minimum(least, least[:, [middle]] + least[[middle]])
    np.testing.assert_array_equal(merged.cost, least)
