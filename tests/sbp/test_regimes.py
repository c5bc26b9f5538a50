"""What the search finds by itself, regime by regime: the schemes that experts write by hand.

Each test says in numbers why its scheme must win where it is asked. Plans only, priced for H100s,
unless a test says that it runs. Letters: B batch, T tokens, D model, F hidden, E experts.
"""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import flowjax
import sbp
from sbp.hardware import H100_NODE, Link
from tests.one_device import assert_same, whole

MOST_GAP = 0.01
MOST_FLOPS = 1.001  # of an even share: the sum of a loss is one
MIB = 2**20


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plan_of(fn, sizes, *args, **options) -> sbp.Plan:
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    options = {"hardware": "h100", **options}
    return sbp.parallelize(fn, mesh=mesh, **options).plan(*args)


def words_of(plan: sbp.Plan) -> dict[str, str]:
    """Words of arguments by path, without parentheses."""
    return {path: str(words)[1:-1] for path, words in plan.arguments}


def sent(plan: sbp.Plan) -> dict[tuple[str, str], int]:
    """Bytes sent by collective and array, as in `all-gather`, `f32[8@dp,16]`, all times together.

    Scalars, such as the sum of a loss, are left out.
    """
    total = collections.Counter()
    for row in plan.boxings:
        if not row.is_local and "[]" not in row.value_type:
            total[row.collective, row.value_type] += row.nbytes * row.count
    return dict(total)


def shape_of(value_type: str) -> tuple[int, ...]:
    """The logical shape: `f32[8@(dp,tp),16]{U:tp}` -> (8, 16)."""
    dims = re.sub(r"@(\([^)]*\)|\w+)", "", value_type).split("[")[1].split("]")[0]
    return tuple(int(dim) for dim in dims.split(","))


def nbytes(*shape: int) -> int:
    return 4 * int(np.prod(shape))


def sgd(loss):
    def step(weights, x, y):
        value, gradient = jax.value_and_grad(loss)(weights, x, y)
        return jax.tree.map(lambda w, g: w - g, weights, gradient), value

    return step


def mlp(weights, x):
    up, down = weights
    return jax.nn.relu(x @ up) @ down


def mlp_loss(weights, x, y):
    return jnp.mean((mlp(weights, x) - y) ** 2)


@pytest.mark.parametrize("sizes", [{"dp": 8}, {"dp": 2, "tp": 4}], ids=str)
def test_a_small_model_is_data_parallel(sizes):
    # Two weights of 16 MiB, against 256 MiB for each array [B, D] and 1 GiB for [B, F]. Reducing
    # the gradients sends 2 x 7/8 x 32 MiB; the output of the second matmul alone, split by
    # columns and rows, 2 x 7/8 x 256 MiB.
    batch, width, hidden = 65536, 1024, 4096
    weights = floats(width, hidden), floats(hidden, width)
    examples = floats(batch, width)
    plan = plan_of(sgd(mlp_loss), sizes, weights, examples, examples, donate_argnums=0)
    assert words_of(plan)["x"] == ", ".join(f"{axis}: S(0)" for axis in sizes)
    moved = sent(plan)
    # An all-reduce of each gradient, or its halves with the update between them.
    assert {shape_of(array) for _, array in moved} == {(width, hidden), (hidden, width)}
    assert sum(moved.values()) == 2 * 7 / 8 * 2 * nbytes(width, hidden)
    assert plan.flops_per_device * 8 <= MOST_FLOPS * plan.total_flops
    assert plan.gap <= MOST_GAP


def layer_norm(x):
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + 1e-5)


def block(x, weights):
    q, k, v = (jnp.einsum("btd,dhk->bthk", layer_norm(x), weights[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k), -1)
    mixed = jnp.einsum("bhts,bshk->bthk", scores, v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, weights["out"])
    h = jax.nn.relu(jnp.einsum("btd,df->btf", layer_norm(x), weights["up"]))
    return x + jnp.einsum("btf,fd->btd", h, weights["down"])


TOKENS, WIDTH, HEADS = 2048, 8192, 64
BLOCK = {name: floats(WIDTH, HEADS, WIDTH // HEADS) for name in "qkv"} | {
    "out": floats(HEADS, WIDTH // HEADS, WIDTH),
    "up": floats(WIDTH, 4 * WIDTH),
    "down": floats(4 * WIDTH, WIDTH),
}
HIDDEN = f"f32[1,{TOKENS},{WIDTH}]"  # one array [B, T, D]


@functools.cache
def wide_plan(between: str | None = None) -> sbp.Plan:
    """A training step of two wide blocks on one node.

    Args:
        between: Words pinned on the activations after each block.
    """

    def loss(weights, x, y):
        for layer in weights:
            x = sbp.pin(block(x, layer), between)
        return jnp.mean((x - y) ** 2)

    hidden = floats(1, TOKENS, WIDTH)
    return plan_of(sgd(loss), {"tp": 8}, [BLOCK, BLOCK], hidden, hidden, donate_argnums=0)


def test_wide_layers_on_fast_links_are_tensor_parallel():
    # A block has 3 GiB of weights, and 64 MiB for each array [B, T, D]. Data parallelism would
    # reduce 3 GiB a block, Megatron reduces four arrays: 256 MiB. Attention over heads, the MLP
    # over F; columns going in, rows coming out (Shoeybi et al. 2019).
    plan = wide_plan()
    words = words_of(plan)
    for number in range(2):
        for name, word in {**dict.fromkeys("qkv", "S(1)"), "out": "S(0)", "down": "S(0)"}.items():
            assert words[f"weights.{number}.{name}"] == f"tp: {word}"
        assert words[f"weights.{number}.up"] == "tp: S(1)"
    moved = sent(plan)
    # Beside the activations only the statistics of a layer norm: a number for each token.
    large = {array: count for (_, array), count in moved.items() if f",{WIDTH}]" in array}
    assert {shape_of(array) for array in large} == {(1, TOKENS, WIDTH)}
    assert sum(moved.values()) - sum(large.values()) < 1e-3 * plan.wire_nbytes
    # Four reductions a block, but one: nobody asks for the gradient of the first block's input.
    assert sum(large.values()) == pytest.approx(7.5 * 2 * 7 / 8 * nbytes(TOKENS, WIDTH), rel=0.07)
    assert plan.flops_per_device * 8 <= MOST_FLOPS * plan.total_flops
    assert plan.gap <= MOST_GAP


def test_the_same_on_slow_links_sends_nothing():
    # 2 GiB of weights in 80 us from the memories of eight devices, and 2 MiB of output to add: 5 us
    # on NVLink, 1.8 ms at 1 GB/s. One device alone reads the weights in 640 us.
    weights, x = (floats(8192, 32768), floats(32768, 8192)), floats(64, 8192)
    slow = dataclasses.replace(H100_NODE, name="slow", inside=Link(bandwidth=1e9, latency=1e-5))
    fast_plan = plan_of(mlp, {"tp": 8}, weights, x)
    slow_plan = plan_of(mlp, {"tp": 8}, weights, x, hardware=slow)
    assert sent(fast_plan) == {("reduce-scatter", "f32[64,8192]{U:tp}"): 7 / 8 * nbytes(64, 8192)}
    assert sent(slow_plan) == {}
    assert max(fast_plan.gap, slow_plan.gap) <= MOST_GAP


def test_between_wide_blocks_activations_are_split_over_tokens():
    # An all-reduce sends what reduce-scatter and all-gather send together, so splitting the
    # activations between them is free; layer norms, residuals and losses then run on an eighth
    # of 64 MiB (Korthikanti et al. 2022).
    plan, as_megatron = wide_plan(), wide_plan("tp: B")
    kinds = {kind: array for kind, array in sent(plan) if f",{WIDTH}]" in array}
    assert kinds == {
        "reduce-scatter": HIDDEN + "{U:tp}",
        "all-gather": f"f32[1,{TOKENS}@tp,{WIDTH}]",
    }
    adds = [row.results[0] for row in plan.equations if row.primitive == "add"]
    residuals = [result for result in adds if shape_of(result) == (1, TOKENS, WIDTH)]
    assert residuals == [f"f32[1,{TOKENS}@tp,{WIDTH}]"] * 4
    assert words_of(plan)["y"] == "tp: S(1)"
    assert plan.cost < as_megatron.cost


LAYERS, STACK_WIDTH = 16, 2048
STACK = floats(LAYERS, STACK_WIDTH, STACK_WIDTH)  # 256 MiB
STATE = dict.fromkeys(("weights", "mean", "square"), STACK)


def adam_step(state, x, y):
    """Adam on a scan over layers that are computed again for the gradient."""

    @jax.checkpoint
    def layer(x, weight):
        return x + jax.nn.relu(x @ weight), None

    def loss(weights):
        return jnp.mean((jax.lax.scan(layer, x, weights)[0] - y) ** 2)

    gradient = jax.grad(loss)(state["weights"])
    mean = 0.9 * state["mean"] + 0.1 * gradient
    square = 0.99 * state["square"] + 0.01 * gradient**2
    weights = state["weights"] - 1e-3 * mean / (jnp.sqrt(square) + 1e-8)
    return {"weights": weights, "mean": mean, "square": square}


@functools.cache
def adam_plan(memory_limit: int | None = None, **pins: str) -> sbp.Plan:
    """A batch of 24576: layers save 24 MiB each on one of eight devices.

    Args:
        memory_limit: In bytes.
        **pins: Words of all the `state`, or of its `weights`.
    """
    x = floats(24576, STACK_WIDTH)
    paths = {"state": "state", "weights": "state.weights"}
    given = {"x": "dp: S(0)"} | {paths[name]: words for name, words in pins.items()}
    options = {"in_sbp": given, "donate_argnums": 0, "memory_limit": memory_limit}
    return plan_of(adam_step, {"dp": 8}, STATE, x, x, **options)


def test_a_little_short_of_memory_the_optimizer_state_is_split():
    # Whole on every device, weights and both moments take 768 MiB, the gradient 256. Split moments
    # (ZeRO-1) save 448 MiB. Reduce-scatter and all-gather send together what the all-reduce sends.
    everywhere = adam_plan(state="dp: B")
    kinds = {kind for kind, _ in sent(everywhere)}
    assert kinds in ({"all-reduce"}, {"reduce-scatter", "all-gather"})
    assert everywhere.wire_nbytes == 2 * 7 / 8 * nbytes(*STACK.shape)
    limit = everywhere.memory_nbytes - 384 * MIB
    for plan in adam_plan(limit), adam_plan(limit, weights="dp: B"):
        assert plan.memory_nbytes <= limit
        assert {words_of(plan)[f"state.{name}"][:5] for name in ("mean", "square")} == {"dp: S"}
        # Gradients are scattered, at once or layer by layer, and weights gathered once.
        assert {kind for kind, _ in sent(plan)} == {"reduce-scatter", "all-gather"}
        assert plan.wire_nbytes == pytest.approx(2 * 7 / 8 * nbytes(*STACK.shape))
        assert plan.gap <= MOST_GAP
        assert plan.cost <= everywhere.cost


def test_very_short_of_memory_weights_are_gathered_layer_by_layer():
    # No device has room for 256 MiB of weights beside its saved layers (384 MiB) and an eighth of
    # the state (96 MiB). Gathered in each layer, and again for its gradient, they take 16 MiB, and
    # the wire carries half as much again: 3 x 7/8 x 256 MiB (ZeRO-3, FSDP).
    limit = 700 * MIB
    plan = adam_plan(limit)
    assert plan.memory_nbytes <= limit
    assert {words_of(plan)[f"state.{name}"] for name in STATE} <= {"dp: S(1)", "dp: S(2)"}
    assert {(kind, shape_of(array)) for kind, array in sent(plan)} == {
        ("all-gather", (STACK_WIDTH, STACK_WIDTH)),
        ("reduce-scatter", (STACK_WIDTH, STACK_WIDTH)),
    }
    counts = collections.Counter(
        (row.collective, row.count) for row in plan.boxings if not row.is_local
    )
    assert counts == {("all-gather", LAYERS): 2, ("reduce-scatter", LAYERS): 1}
    assert plan.wire_nbytes == 3 * 7 / 8 * nbytes(*STACK.shape)


def test_a_large_vocabulary_is_split_and_no_logits_are_sent():
    # Logits are 1 GiB: gathering them sends 7/8 of it. Split over the vocabulary, softmax needs the
    # maximum, the sum and the label's logit of each token: 8 KiB each (Megatron's
    # VocabParallelCrossEntropy).
    vocabulary, tokens, width = 131072, 2048, 2048

    def loss(table, hidden, labels):
        logits = jnp.einsum("td,vd->tv", hidden, table)
        picked = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    labels = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    gradients = jax.value_and_grad(loss, argnums=(0, 1))
    plan = plan_of(gradients, {"tp": 8}, floats(vocabulary, width), floats(tokens, width), labels)
    assert words_of(plan)["table"] == "tp: S(0)"
    assert str(dict(plan.results)["1.0"]) == "(tp: S(0))"
    moved = sent(plan)
    assert moved.pop(("reduce-scatter", f"f32[{tokens},{width}]{{U:tp}}")) == (
        7 / 8 * nbytes(tokens, width)  # the gradient of the hidden states
    )
    assert moved["all-reduce", f"f32[{tokens}]{{Umax:tp}}"] == 2 * 7 / 8 * nbytes(tokens)
    assert {shape_of(array) for _, array in moved} == {(tokens,)}
    assert sum(moved.values()) <= 3 * 2 * 7 / 8 * nbytes(tokens)
    assert plan.gap <= MOST_GAP


SIDE = 16384  # a matrix is 1 GiB


def matmul(a, b):
    return a @ b


def test_short_of_memory_a_matmul_is_split_over_both_axes_in_both_matrices():
    # A quarter of each matrix and a sixteenth of the result: 576 MiB. Rows over all sixteen
    # devices, with the other matrix whole, take 1152 MiB.
    matrix = floats(SIDE, SIDE)
    plan = plan_of(matmul, {"row": 4, "col": 4}, matrix, matrix, memory_limit=700 * MIB)
    ends = words_of(plan)
    assert {frozenset(ends["a"].split(", ")), frozenset(ends["b"].split(", "))} in (
        {frozenset({f"{a}: S(0)", f"{b}: B"}), frozenset({f"{a}: B", f"{b}: S(1)"})}
        for a, b in (("row", "col"), ("col", "row"))
    )
    assert sent(plan) == {}
    assert plan.flops_per_device * 16 == plan.total_flops
    assert plan.gap <= MOST_GAP


@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (4, 4)])
def test_matrices_that_lie_in_blocks_are_gathered_along_rows_and_columns(rows, columns):
    # A device needs a row of blocks of one matrix and a column of the other. On eight devices of
    # a node, 128 + 384 MiB arrive; gathering one of them whole, 7/8 of 1024 MiB do. On sixteen of
    # two nodes, 192 MiB in each, half of them over the slow link (SUMMA: van de Geijn & Watts
    # 1997).
    blocks = "row: S(0), col: S(1)"
    plan = plan_of(
        matmul, {"row": rows, "col": columns}, floats(SIDE, SIDE), floats(SIDE, SIDE),
        in_sbp={"a": blocks, "b": blocks}, out_sbp=blocks,
    )  # fmt: skip
    block_nbytes = nbytes(SIDE // rows, SIDE // columns)
    gathers = [(row.array, row.axes, row.collective, row.nbytes) for row in plan.boxings]
    assert gathers == [
        ("a", ("col",), "all-gather", (columns - 1) * block_nbytes),
        ("b", ("row",), "all-gather", (rows - 1) * block_nbytes),
    ]
    assert plan.gap <= MOST_GAP


def experts(weights, x, gates):
    """Tokens x [B, T, D] go to experts E in slots C as gates [B, T, E, C] say, and back."""
    up, down = weights
    slots = jnp.einsum("btec,btd->ebcd", gates, x)
    h = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", slots, up))
    return jnp.einsum("btec,ebcd->btd", gates, jnp.einsum("ebcf,efd->ebcd", h, down))


def test_a_mixture_of_experts_is_split_over_experts():
    # Eight experts of 512 MiB: a device reads its own in 160 us, all of them in 1.3 ms. The slots
    # of all tokens are 8 MiB; an all-to-all sends 7/64 of it to the experts, and 7/64 back
    # (GShard: Lepikhin et al. 2020).
    tokens, width, hidden = 64, 4096, 16384
    weights = floats(8, width, hidden), floats(8, hidden, width)
    x, gates = floats(8, tokens, width), floats(8, tokens, 8, 8)
    plan = plan_of(experts, {"ep": 8}, weights, x, gates, in_sbp={"x": "ep: S(0)"})
    words = words_of(plan)
    assert words["weights.0"] == words["weights.1"] == words["gates"] == "ep: S(0)"
    assert {kind for kind, _ in sent(plan)} == {"all-to-all"}
    assert plan.wire_nbytes == 2 * 7 / 64 * nbytes(8, 64, width)
    assert plan.flops_per_device * 8 == plan.total_flops
    assert plan.gap <= MOST_GAP

    # The same words run, in small: where only latency counts, bytes must.
    small = (whole(8, 16, 32), whole(8, 32, 16, seed=1)), whole(8, 8, 16, seed=2), whole(8, 8, 8, 2)
    step = sbp.parallelize(
        experts, mesh=flowjax.make_mesh("ep=8"), objective="bytes",
        in_sbp=words, out_sbp=dict(plan.results)[""],
    )  # fmt: skip
    assert_same(step(*small), experts(*small))
    assert {kind for kind, _ in sent(step.plan(*small))} == {"all-to-all"}


def test_a_limit_that_some_plan_meets_is_met_again():
    found = adam_plan(700 * MIB).memory_nbytes
    assert found < 700 * MIB
    assert adam_plan(found).memory_nbytes <= found
