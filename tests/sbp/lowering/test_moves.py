"""Boxing steps do what words mean: every change of words is run on devices and put together."""

import functools
import math
from collections import Counter

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sbp.algebra import P_MAX, P_MIN, ArrayType, B, NdSbp, P, Partial, Split, local_shape
from sbp.boxing import BoxingTable, Step, boxing_path
from sbp.errors import SignatureError
from sbp.lowering import moves
from sbp.lowering.moves import run_path, run_step
from sbp.reference import gather, same, scatter

NAMES = ("a", "b", "c")
KINDS = (P, P_MAX, P_MIN)
S0, S1 = map(Split, range(2))
STEPS_PER_PROGRAM = 64
QUICK = {"xla_backend_optimization_level": 0}
"""Compiles a third as long; the tests of dtypes and of any shape run optimised code."""


def make_mesh(sizes):
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, NAMES[: len(sizes)], axis_types=auto, devices=devices)


def shape_on_device(shape, words, sizes):
    shape = local_shape(shape, words, sizes)
    assert shape is not None
    return shape


def on_devices(functions, sizes):
    """A program that runs `functions` each on its own local array.

    Local arrays are stacked in leading dims of the mesh's sizes: so any word can go in and out.
    """
    one, spec = (1,) * len(sizes), PartitionSpec(*NAMES[: len(sizes)])

    def local(*arrays):
        results = (
            f(x.reshape(x.shape[len(one) :])) for f, x in zip(functions, arrays, strict=True)
        )
        return tuple(y.reshape(one + y.shape) for y in results)

    mesh = make_mesh(sizes)
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def cut(value, words, sizes, seed=3):
    """Local arrays of a value, stacked."""
    names, rng = NAMES[: len(sizes)], np.random.default_rng(seed)
    locals_ = scatter(value, NdSbp.of(names, words), dict(zip(names, sizes, strict=True)), rng)
    stacked = np.empty(sizes + locals_[(0,) * len(sizes)].shape, value.dtype)
    for device in np.ndindex(*sizes):
        stacked[device] = locals_[device]
    return stacked


def put_together(stacked, words, sizes):
    """The value of stacked local arrays."""
    names, stacked = NAMES[: len(sizes)], np.asarray(stacked)
    locals_ = np.empty(sizes, object)
    for device in np.ndindex(*sizes):
        locals_[device] = stacked[device]
    return gather(locals_, NdSbp.of(names, words), dict(zip(names, sizes, strict=True)))


def outcome(run, value, src, dst, sizes):
    """What `run`, a function of local arrays, makes of a value cut by `src` and read by `dst`."""
    (result,) = on_devices([run], sizes)(cut(value, src, sizes))
    return put_together(result, dst, sizes)


def program_text(step, array, sizes):
    """A text that is equal for steps that run the same program."""
    shape = local_shape(array.shape, step.src, sizes)
    env = list(zip(NAMES, sizes, strict=False))
    jaxpr = jax.make_jaxpr(lambda x: run_step(x, step, array, NAMES, sizes), axis_env=env)(
        jax.ShapeDtypeStruct(shape, array.dtype)
    )
    return f"{jaxpr} {[np.asarray(const).tolist() for const in jaxpr.consts]}"


def run_side_by_side(groups, last, held, array, sizes, options):
    """Runs groups of pairs whose last steps are one program, and adds what comes out to `held`.

    The arrays of a group lie side by side in a last dim that is never split. Round k runs the paths
    of k steps; they begin with what an earlier round has left.
    """
    steps = [last[group[0]][0] for group in groups]
    functions = [
        functools.partial(
            run_step,
            step=step,
            array=ArrayType((*array.shape, len(group)), array.dtype),
            axis_names=NAMES,
            sizes=sizes,
        )
        for step, group in zip(steps, groups, strict=True)
    ]
    buffers = [
        np.zeros((*sizes, *shape_on_device(array.shape, step.src, sizes), len(group)), array.dtype)
        for step, group in zip(steps, groups, strict=True)
    ]
    program = on_devices(functions, sizes).lower(*buffers).compile(compiler_options=options)
    num_rounds = max(count for _, count in last.values())
    for num_steps in range(1, num_rounds + 1):
        now = [
            (number, place, pair)
            for number, group in enumerate(groups)
            for place, pair in enumerate(group)
            if last[pair][1] == num_steps
        ]
        for number, place, (src, dst) in now:
            buffers[number][..., place] = held[src, last[src, dst][0].src]
        results = [np.asarray(result) for result in program(*buffers)] if now else []
        for number, place, pair in now:
            held[pair] = results[number][..., place].copy()
        yield


def any_integers(rng, shape, dtype):
    bounds = np.iinfo(dtype)
    values = rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    values.ravel()[:2] = bounds.min, bounds.max
    return values


def check_all_pairs(shape, sizes, dtype=np.int8, make_values=any_integers, options=None):
    """Runs the path of every pair of words on devices and compares each outcome with its value.

    The paths of one source form a tree: a path is that of an earlier pair and one step more.

    Returns:
        The number of pairs.
    """
    array = ArrayType(shape, np.dtype(dtype))
    table = BoxingTable(array, sizes, KINDS)
    values = make_values(np.random.default_rng(5), (*shape, len(table.words)), array.dtype)
    held = {
        (src, src): cut(values[..., number], src, sizes, seed=number)
        for number, src in enumerate(table.words)
    }
    paths = {(src, dst): table.path(src, dst) for src in table.words for dst in table.words}
    last = {pair: (path[-1], len(path)) for pair, path in paths.items() if path}
    texts = {
        step: program_text(step, array, sizes)
        for step in dict.fromkeys(step for step, _ in last.values())
    }
    alike = {}
    for pair, (step, _) in last.items():
        alike.setdefault(texts[step], []).append(pair)
    groups = list(alike.values())
    chunks = [
        run_side_by_side(groups[i : i + STEPS_PER_PROGRAM], last, held, array, sizes, options)
        for i in range(0, len(groups), STEPS_PER_PROGRAM)
    ]
    for _ in zip(*chunks, strict=True):
        pass
    assert held.keys() == paths.keys()
    for dst in table.words:
        stacked = np.stack([held[src, dst] for src in table.words], -1)
        assert stacked.shape[len(sizes) : -1] == local_shape(shape, dst, sizes)
        result = put_together(stacked, dst, sizes)
        wrong = [
            src for k, src in enumerate(table.words) if not same(result[..., k], values[..., k])
        ]
        assert not wrong, (dst, table.path(wrong[0], dst))
    return len(paths)


@pytest.mark.parametrize("shape", [(), (16,), (16, 8), (8, 8, 8)])
@pytest.mark.parametrize("sizes", [(8,), (2, 4)])
def test_every_pair_of_words(sizes, shape):
    num_words = {
        ((8,), 0): 4, ((8,), 1): 5, ((8,), 2): 6, ((8,), 3): 7,
        ((2, 4), 0): 10, ((2, 4), 1): 19, ((2, 4), 2): 30, ((2, 4), 3): 43,
    }  # fmt: skip
    assert check_all_pairs(shape, sizes, options=QUICK) == num_words[sizes, len(shape)] ** 2


@pytest.mark.parametrize(("shape", "num_words"), [((), 22), ((16,), 65), ((8, 16), 138)])
def test_every_pair_of_words_on_three_axes(shape, num_words):
    assert check_all_pairs(shape, (2, 2, 2), options=QUICK) == num_words**2


@pytest.mark.slow
def test_every_pair_of_words_of_three_dims_on_three_axes():
    assert check_all_pairs((8, 8, 8), (2, 2, 2), options=QUICK) == 247**2


@pytest.mark.parametrize("shape", [(8, 4), (4, 1)])
@pytest.mark.parametrize("sizes", [(1, 4), (2, 1)])
def test_every_pair_of_words_beside_an_axis_of_one_device(sizes, shape):
    check_all_pairs(shape, sizes)


def floats_with_nan(rng, shape, dtype):
    choices = [np.nan, np.inf, -np.inf, -0.0, *range(-20, 21)]
    return rng.choice(np.array(choices), shape).astype(dtype)


def small_complex(rng, shape, dtype):
    return (rng.integers(-9, 9, shape) + 1j * rng.integers(-9, 9, shape)).astype(dtype)


def booleans(rng, shape, dtype):
    return rng.integers(0, 2, shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "make_values"),
    [
        ("float32", floats_with_nan),
        ("float16", floats_with_nan),
        (ml_dtypes.bfloat16, floats_with_nan),
        ("float64", floats_with_nan),
        ("bool", booleans),
        ("int32", any_integers),
        ("int64", any_integers),
        ("uint16", any_integers),
        ("complex64", small_complex),
    ],
)
def test_every_pair_of_words_of_a_dtype(dtype, make_values):
    with jax.enable_x64(True):
        check_all_pairs((8,), (2, 4), dtype, make_values=make_values)


@st.composite
def problems(draw):
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 4), (2, 1, 3), (3, 2)]))
    extents = st.sampled_from([0, 1, 2, 4, 6, 8, 12, 16])
    array = ArrayType(tuple(draw(st.lists(extents, max_size=3))), np.dtype(np.int32))
    words = st.sampled_from(BoxingTable(array, sizes, KINDS).words)
    return array, sizes, draw(words), draw(words)


@given(problems(), st.integers(0, 99))
def test_paths_of_any_shape(problem, seed):
    array, sizes, src, dst = problem
    value = np.random.default_rng(seed).integers(-99, 99, array.shape, array.dtype)
    steps = boxing_path(src, dst, array, sizes)
    result = outcome(lambda x: run_path(x, steps, array, NAMES, sizes), value, src, dst, sizes)
    assert same(result, value)


def partition_spec(words, ndim):
    over = [
        tuple(n for n, w in zip(NAMES, words, strict=False) if w == Split(d)) for d in range(ndim)
    ]
    return PartitionSpec(*(axes or None for axes in over))


@pytest.mark.parametrize(("sizes", "shape"), [((8,), (16, 8)), ((2, 4), (8,))])
def test_random_keys_move_as_they_are(sizes, shape):
    keys = jax.random.split(jax.random.key(0), shape)
    array, mesh = ArrayType(keys.shape, keys.dtype), make_mesh(sizes)
    table = BoxingTable(array, sizes, KINDS)
    assert not any(isinstance(word, Partial) for words in table.words for word in words)
    for src in table.words:
        run = jax.jit(
            jax.shard_map(
                lambda x, src=src: [
                    run_path(x, table.path(src, dst), array, NAMES, sizes) for dst in table.words
                ],
                mesh=mesh,
                in_specs=partition_spec(src, len(shape)),
                out_specs=[partition_spec(dst, len(shape)) for dst in table.words],
                check_vma=False,
            )
        )
        for result in run(keys):
            assert result.dtype == keys.dtype
            assert (jax.random.key_data(result) == jax.random.key_data(keys)).all()


COLLECTIVES = {
    "all_gather": ("all-gather", lambda n, b: (n - 1) * b),
    "reduce_scatter": ("reduce-scatter", lambda n, b: (n - 1) * b // n),
    "psum": ("all-reduce", lambda n, b: math.ceil(2 * (n - 1) * b / n)),
    "pmax": ("all-reduce", lambda n, b: math.ceil(2 * (n - 1) * b / n)),
    "pmin": ("all-reduce", lambda n, b: math.ceil(2 * (n - 1) * b / n)),
    "all_to_all": ("all-to-all", lambda n, b: (n - 1) * b // n),
    "ppermute": ("collective-permute", lambda n, b: b),
}
"""Primitives: the kind of step, and the bytes sent for n devices with operands of b bytes."""


def traced_collectives(run, array, src, sizes):
    """Kind, axes, bytes sent and dtype of the collectives that a function of local arrays binds."""
    env = list(zip(NAMES, sizes, strict=False))
    local = jax.ShapeDtypeStruct(local_shape(array.shape, src, sizes), array.dtype)
    found = []
    for eqn in jax.make_jaxpr(run, axis_env=env)(local).eqns:
        if eqn.primitive.name in COLLECTIVES:
            kind, nbytes = COLLECTIVES[eqn.primitive.name]
            names = eqn.params.get("axis_name", eqn.params.get("axes"))
            axes = tuple(NAMES.index(name) for name in names)
            aval = eqn.invars[0].aval
            n = math.prod(sizes[axis] for axis in axes)
            found.append((kind, axes, nbytes(n, aval.size * aval.dtype.itemsize), aval.dtype))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bool", ml_dtypes.bfloat16])
@pytest.mark.parametrize("sizes", [(8,), (2, 4)])
def test_a_step_is_the_collective_it_says_and_sends_the_bytes_it_says(sizes, dtype):
    array = ArrayType((16, 8), np.dtype(dtype))
    for step in BoxingTable(array, sizes, KINDS).steps():
        found = traced_collectives(
            lambda x, step=step: run_step(x, step, array, NAMES, sizes), array, step.src, sizes
        )
        expected = [] if step.is_local else [(step.kind, step.axes, step.nbytes)]
        assert [sent[:3] for sent in found] == expected, step
        assert all(sent[3].itemsize == array.dtype.itemsize for sent in found)


def test_a_path_runs_its_collectives_and_no_others():
    array, sizes = ArrayType((8, 16), np.dtype(np.float32)), (2, 4)
    table = BoxingTable(array, sizes, KINDS)
    for src in table.words[::4]:
        for dst in table.words[::3]:
            steps = table.path(src, dst)
            found = traced_collectives(
                lambda x, steps=steps: run_path(x, steps, array, NAMES, sizes), array, src, sizes
            )
            assert Counter(sent[:3] for sent in found) == Counter(
                (step.kind, step.axes, step.nbytes) for step in steps if not step.is_local
            )


def test_sums_stay_in_their_dtype():
    array = ArrayType((8,), np.dtype(ml_dtypes.bfloat16))
    for dst, kind in [((B,), "all-reduce"), ((S0,), "reduce-scatter")]:
        steps = boxing_path((P,), dst, array, (8,))
        ((found, _, _, dtype),) = traced_collectives(
            lambda x, steps=steps: run_path(x, steps, array, NAMES, (8,)), array, (P,), (8,)
        )
        assert (found, dtype) == (kind, array.dtype)


# What follows is wrong on purpose: the checks above must see it.


def is_right(run, value, src, dst, sizes):
    try:
        return same(outcome(run, value, src, dst, sizes), value)
    except SignatureError:
        return False


def test_swapped_nesting_is_seen():
    value = np.arange(16, dtype=np.int32)

    def gather_over(*names):
        return lambda x: lax.all_gather(x, names, axis=0, tiled=True)

    assert is_right(gather_over("a", "b"), value, (S0, S0), (B, B), (2, 4))
    assert not is_right(gather_over("b", "a"), value, (S0, S0), (B, B), (2, 4))


@pytest.mark.parametrize(
    ("kind", "src", "dst"),
    [
        ("slice", (B, S0), (S0, S0)),
        ("all-gather", (S0, S0), (B, S0)),
        ("reduce-scatter", (P, S0), (S0, S0)),
        ("place", (S0, S0), (P, S0)),
        ("all-to-all", (S0, S0), (S1, S0)),
        ("all-to-all", (S1, S0), (S0, S0)),
        ("all-to-all", (P_MAX, S1), (S1, S1)),
    ],
)
def test_steps_that_an_inner_split_forbids_are_wrong(kind, src, dst):
    array, sizes = ArrayType((16, 16), np.dtype(np.int32)), (2, 4)
    step = Step(kind, (0,), src, dst, 0, 0)
    assert (kind, src, dst) not in {
        (legal.kind, legal.src, legal.dst) for legal in BoxingTable(array, sizes, KINDS).steps()
    }
    value = np.arange(256, dtype=np.int32).reshape(16, 16)
    run = functools.partial(run_step, step=step, array=array, axis_names=NAMES, sizes=sizes)
    assert not is_right(run, value, src, dst, sizes)


def test_a_plain_maximum_over_devices_loses_nan():
    value = np.array([1, np.nan, -np.inf, -2], np.float32)
    (step,) = boxing_path((P_MAX,), (B,), ArrayType((4,), value.dtype), (8,))
    array = ArrayType((4,), value.dtype)
    assert is_right(lambda x: run_step(x, step, array, NAMES, (8,)), value, (P_MAX,), (B,), (8,))
    assert not is_right(lambda x: lax.pmax(x, "a"), value, (P_MAX,), (B,), (8,))


def test_a_whole_array_on_every_device_is_no_part_of_a_sum():
    value = np.arange(4, dtype=np.int32)
    assert not is_right(lambda x: x, value, (B,), (P,), (8,))
    assert is_right(lambda x: x, value, (B,), (P_MAX,), (8,))


def test_zeros_do_not_pad_a_maximum():
    value = -1 - np.arange(8, dtype=np.int32)

    def place_among_zeros(x):
        return lax.dynamic_update_slice(jnp.zeros(8, x.dtype), x, [lax.axis_index("a")])

    assert not is_right(place_among_zeros, value, (S0,), (P_MAX,), (8,))
    assert is_right(place_among_zeros, value, (S0,), (P,), (8,))


def test_a_permute_to_the_wrong_device_is_seen(monkeypatch):
    value, array = np.arange(16, dtype=np.int32), ArrayType((16,), np.dtype(np.int32))
    (step,) = boxing_path((S0, B), (B, S0), array, (2, 2))
    run = functools.partial(run_step, step=step, array=array, axis_names=NAMES, sizes=(2, 2))
    assert is_right(run, value, (S0, B), (B, S0), (2, 2))
    pairs, parts = moves.permutation(step.axes, step.src, step.dst, 1, (2, 2))
    turned = tuple((sender, (receiver + 1) % 4) for sender, receiver in pairs)
    monkeypatch.setattr(moves, "permutation", lambda *_: (turned, parts))
    assert not is_right(run, value, (S0, B), (B, S0), (2, 2))


def test_sharding_of_jax_agrees_with_stacked_local_arrays():
    value, sizes = np.arange(64, dtype=np.int32).reshape(8, 8), (2, 4)
    for words in BoxingTable(ArrayType((8, 8), value.dtype), sizes).words:
        sharding = NamedSharding(make_mesh(sizes), partition_spec(words, 2))
        shards = jax.device_put(value, sharding).addressable_shards
        stacked = cut(value, words, sizes).reshape(8, *shape_on_device((8, 8), words, sizes))
        for shard in shards:
            np.testing.assert_array_equal(shard.data, stacked[shard.device.id])
