"""`why`: each kind of answer, each reason, and each question that cannot be answered."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import flowjax
import sbp
from sbp.plan.explain import format_seconds
from tests.one_device import MESH
from tests.sbp.plan.test_plan import W1, W2, X, mlp, plan_of

LINE = f"tests/sbp/plan/test_plan.py:{mlp.__code__.co_firstlineno + 1}"


def short(answer):
    return str(answer).replace(LINE, "LINE")


def test_words_that_it_has():
    answer = plan_of("megatron").why("w1", "tp: S(1)")
    assert answer.kind == "same"
    assert answer.plan is None
    assert str(answer) == (
        "argument w1 is 'tp: S(1)' already: (dp: B, tp: S(1)), as in_sbp 'tp: S(1), dp: B' asks"
    )
    answer = plan_of("mlp").why("argument w1", "dp: S(-2)")
    assert str(answer).startswith("argument w1 as 'dp: S(-2)' instead of (dp: S(1), tp: B): ")
    answer = plan_of("mlp").why("argument w1", "dp: S(-1)")
    assert str(answer) == "argument w1 is 'dp: S(-1)' already: (dp: S(1), tp: B)"


def test_dearer_words_and_what_they_change():
    plan = plan_of("mlp", hardware="h100")
    answer = plan.why("w1", "tp: S(0)")
    assert answer.kind == "dearer"
    assert (
        short(answer)
        == """\
argument w1 as 'tp: S(0)' instead of (dp: S(1), tp: B): dearer by 1.08 ns (0.05%)
  wire/device: 64 B -> 384 B
  memory: 1.5 KiB -> 1.25 KiB
  argument x: (dp: B, tp: S(0)) -> (dp: S(0), tp: B)
  argument w1: (dp: S(1), tp: B) -> (dp: B, tp: S(0))
  argument w2: (dp: S(0), tp: B) -> (dp: B, tp: S(0))
  the result: (dp: S(1), tp: S(0)) -> (dp: S(0), tp: S(0))
  - reduce-scatter over dp of f32[16@tp,8]{U:dp} at the result, 64 B
  + all-to-all over tp of f32[8@tp,32] at LINE, 192 B
  + reduce-scatter over tp of f32[16@dp,8]{U:tp} at the result, 192 B"""
    )
    pinned = sbp.parallelize(mlp, mesh=MESH, hardware="h100", in_sbp={"w1": "tp: S(0)"})
    assert answer.plan == pinned.plan(X, W1, W2)
    assert answer.plan.cost > plan.cost


def test_a_tie():
    def square(x):
        return x * x

    plan = sbp.parallelize(square, mesh=AbstractMesh((2,), ("dp",))).plan(X)
    has = plan.arguments[0][1]["dp"]
    answer = plan.why("x", sbp.S(1 - has.dim))
    assert answer.kind == "tie"
    assert str(answer).startswith(
        f"argument x as 'dp: S({1 - has.dim})' instead of (dp: {has}): a tie, both cost the same\n"
        "  argument x: "
    )


def test_cheaper_words_where_the_plan_was_not_searched_for(tmp_path):
    plan_of("megatron").save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    plan = sbp.parallelize(mlp, mesh=MESH, plan=loaded).plan(X, W1, W2)
    free = plan_of("mlp")
    answer = plan.why("w1", free.arguments[1][1])
    assert answer.kind == "cheaper"
    assert answer.plan == free
    assert ": cheaper by " in str(answer)


def test_the_objective_bytes_is_compared_in_bytes():
    plan = plan_of("mlp", objective="bytes", in_sbp={"x": "dp: S(0), tp: B"})
    answer = plan.why("result", "dp: B, tp: B")
    assert answer.kind == "dearer"
    more = answer.plan.wire_nbytes - plan.wire_nbytes
    assert more > 0
    assert f": dearer by {more} bytes sent (" in str(answer)


def test_a_dim_that_does_not_divide_or_exist():
    plan = sbp.parallelize(jnp.sin, mesh=MESH).plan(jnp.zeros((6, 8), jnp.float32))
    name = plan.arguments[0][0]
    answer = plan.why(name, "tp: S(0)")
    assert answer.kind == "illegal"
    assert str(answer) == (
        f"argument {name} cannot be 'tp: S(0)':\n"
        "  f32[6,8]: dim 0 has 6 elements, axis 'tp' has 4 devices.\n"
        "  Split needs equal slices; 6 is not a multiple of 4."
    )
    answer = plan.why(name, "dp: S(2)")
    assert (answer.kind, str(answer)) == (
        "illegal",
        f"argument {name} cannot be 'dp: S(2)':\n  f32[6,8] has 2 dims, numbered 0 to 1.",
    )


def test_a_pin_at_an_end():
    answer = plan_of("megatron").why("w1", "tp: S(0)")
    assert (answer.kind, str(answer)) == (
        "illegal",
        "argument w1 cannot be 'tp: S(0)':\n  in_sbp asks for 'tp: S(1)'.",
    )
    answer = plan_of("megatron").why("the result", "tp: S(0)")
    assert (answer.kind, str(answer)) == (
        "illegal",
        "the result cannot be 'tp: S(0)':\n  out_sbp asks for 'tp: B'.",
    )


def test_a_pin_of_what_it_is_tied_to():
    answer = plan_of("sharded").why("result 0.w", "dp: B")
    assert (answer.kind, str(answer)) == (
        "illegal",
        "result 0.w cannot be 'dp: B':\n"
        "  in_sbp asks for 'dp: S(1)'.\n"
        "  result 0.w and argument params.w are tied: they have the same words",
    )


def test_what_is_tied_changes_together():
    answer = plan_of("sharded").why("params.v", "dp: S(0)")
    assert answer.kind == "dearer"
    assert dict(answer.plan.results)["0.v"]["dp"] == sbp.S(0)
    head, tie, *_ = str(answer).splitlines()
    assert head.startswith("argument params.v as 'dp: S(0)' instead of (dp: B, tp: B): dearer")
    assert tie == "result 0.v and argument params.v are tied: they have the same words"
    assert plan_of("sharded").why("0.v", "dp: S(0)").plan == answer.plan


def test_a_pin_inside():
    def pinned(x):
        return jnp.sin(sbp.pin(x + 1, tp=sbp.S(1)))

    plan = sbp.parallelize(pinned, mesh=MESH).plan(X)
    line = f"{pinned.__code__.co_filename}:{pinned.__code__.co_firstlineno + 1}".split("/")[-1]
    answer = plan.why(line, "tp: B", which="pin")
    assert answer.kind == "illegal"
    assert str(answer).endswith(" cannot be 'tp: B':\n  A pin on this line keeps 'tp: S(1)'.")


def test_a_partial_end():
    answer = plan_of("mlp").why("x", "tp: P")
    assert (answer.kind, str(answer)) == (
        "illegal",
        "argument x cannot be 'tp: P': in_sbp 'tp: P' asks for a partial array on a mesh with "
        "Auto axes\n  jax's unreduced arrays exist on Explicit axes only.",
    )
    explicit = flowjax.make_mesh("dp=2,tp=4", axis_types=AxisType.Explicit)
    assert plan_of("mlp", mesh=explicit).why("x", "tp: P").kind == "dearer"


def test_a_condition_that_no_such_plan_meets():
    plan = plan_of("mlp", max_nbytes=64, in_sbp={"x": "dp: S(0), tp: S(1)"})
    answer = plan.why("result", "dp: B, tp: B")
    assert answer.kind == "illegal"
    assert "cannot be 'dp: B, tp: B': mlp sends 448 bytes a device, max_nbytes is 64\n" in str(
        answer
    )


def test_a_condition_that_a_plan_of_least_bytes_meets():
    plan = plan_of("mlp", max_nbytes=64)
    answer = plan.why("result", "dp: B, tp: B")
    assert plan.objective == "time"
    assert answer.plan.objective == "bytes"
    times = format_seconds(answer.plan.cost_seconds), format_seconds(plan.cost_seconds)
    assert answer.kind == "dearer"
    assert f": {times[0]} instead of {times[1]}, planned by bytes\n" in str(answer)


def test_an_operation_without_such_a_signature():
    plan = plan_of("mlp", hardware="h100")
    answer = plan.why(LINE, "tp: P", which="max")
    assert answer.kind == "illegal"
    assert answer.plan is not None
    assert (
        "\n".join(short(answer).splitlines()[:4])
        == """\
max f32[16@tp,32@dp] at LINE cannot be computed as 'tp: P':
  max has no signature with this result.
  On tp it has B, B -> B; S(0), B -> S(0); S(1), B -> S(1); P.max, P.max -> P.max; P.max, B -> P.max; P.min, B -> P.min and 2 more.
boxed to it for all its readers, as a pin does: dearer by 1.16 ns (0.06%)"""  # noqa: E501
    )


def test_a_value_inside_is_asked_by_its_line():
    plan = plan_of("mlp", hardware="h100")
    answer = plan.why(LINE.rsplit("/", 1)[1], "tp: S(0), dp: B", which=0)
    assert answer.kind == "dearer"
    assert short(answer).startswith(
        "dot_general f32[16@tp,32@dp] at LINE as 'tp: S(0), dp: B' instead of (dp: S(1), tp: S(0))"
        ": dearer by 0.064 ns (0.00%)\n"
    )

    def pinned(x, w1, w2):
        return jnp.maximum(sbp.pin(x @ w1, "dp: B, tp: S(0)"), 0) @ w2

    # The same words as if the user had pinned them, at the price of the program without a pin.
    assert answer.plan.arguments == sbp.parallelize(pinned, mesh=MESH, hardware="h100").plan(
        X, W1, W2
    ).arguments  # fmt: skip
    assert answer.plan.fingerprint == plan.fingerprint


@pytest.mark.parametrize("name", ["mlp", "megatron", "sharded"])
def test_pinned_to_the_words_it_has_a_value_changes_nothing(name):
    plan = plan_of(name)
    origin = plan.origin
    graph = origin.assignment.boxing.graph
    inside = [
        value
        for equation in origin.traced.block.equations
        for value in equation.outputs
        if equation.name != "pin"
    ]
    assert inside
    for value in inside[-12:]:
        words = sbp.NdSbp.of(graph.mesh.axes, origin.assignment.written(value))
        pinned = dataclasses.replace(origin.boundary, inner_words={value: words})
        other = origin.plan_for(pinned)
        # Prices and memory are those of the program without the pin.
        assert other.cost == plan.cost
        assert other.compute_seconds == pytest.approx(plan.compute_seconds)
        assert other.memory_nbytes == plan.memory_nbytes


def test_a_value_that_is_boxed_for_all_its_readers():
    plan = plan_of("megatron")
    answer = plan.why(LINE, "tp: B", which=2)
    assert answer.kind == "same"
    assert short(answer) == (
        "dot_general f32[16@dp,8]{U:tp} at LINE is boxed to 'tp: B' already, for all that read it"
    )


def test_a_value_of_a_loop():
    plan = plan_of("sharded")
    row = next(row for row in plan.equations if row.primitive == "max")
    with pytest.raises(sbp.SbpError, match="computes"):
        plan.why(row.source, "tp: B")
    answer = plan.why(row.source, "dp: B, tp: B", which="max ")
    assert answer.kind == "dearer"
    assert answer.plan.flops_per_device > plan.flops_per_device


def test_a_lone_word_is_for_the_one_axis():
    plan = sbp.parallelize(mlp, mesh=AbstractMesh((4, 1), ("dp", "tp"))).plan(X, W1, W2)
    assert str(plan.why("w1", sbp.B)) == str(plan.why("w1", "dp: B")) == str(plan.why("w1", "B"))
    assert plan.why("w1", "tp: S(0)").kind == "same"
    with pytest.raises(sbp.SbpError) as caught:
        plan_of("mlp").why("w1", sbp.S(0))
    assert (
        str(caught.value)
        == """\
why was asked about S(0) without an axis.
  The mesh has dp=2, tp=4.
Fix one of: why(..., 'dp: S(0)') | why(..., 'tp: S(0)')"""
    )


QUESTIONS = {
    "no such value": (
        ("w3", "tp: B"),
        """\
'w3' is neither an argument, a result, nor a line that computes a value.
  The arguments and results are argument x, argument w1, argument w2, the result.
Fix one of: 'w2' | 'w1' | a line as explain() prints it""",
    ),
    "several values": (
        (LINE, "tp: B"),
        """\
LINE computes 3 values.
  By number:
  0  dot_general f32[16@tp,32@dp]
  1  max f32[16@tp,32@dp]
  2  dot_general f32[16@tp,8]{U:dp}
Fix one of: which=2 | which='dot_general f32[16@tp,8]{U:dp}'""",
    ),
    "a number that is not there": (
        (LINE, "tp: B", 3),
        """\
which=3 does not say which value of LINE.
  By number:
  0  dot_general f32[16@tp,32@dp]
  1  max f32[16@tp,32@dp]
  2  dot_general f32[16@tp,8]{U:dp}
Fix one of: which=2 | which='dot_general f32[16@tp,8]{U:dp}'""",
    ),
    "which of a path": (
        ("w1", "tp: B", 0),
        """\
which=0 has nothing to choose from (argument w1).
  A path names one array; only a line computes several.
Fix: leave which out""",
    ),
    "an axis that is not there": (
        ("w1", "pp: B"),
        """\
why 'pp: B' names an axis that the mesh does not have (argument w1).
  The mesh has dp=2, tp=4.
Fix one of: use one of dp, tp | make a mesh with an axis 'pp'""",
    ),
    "no words": (
        ("w1", ""),
        """\
why was asked about no words (argument w1).
  It compares the words of a value with others.
Fix: why(..., 'dp: B')""",
    ),
    "something else for words": (
        ("w1", 3),
        """\
3 is not words (argument w1).
  Words are text, NdSbp, or one of sbp.S(dim), sbp.B and sbp.P.
Fix: why(..., 'dp: B')""",
    ),
    "something else for a value": (
        (None, "tp: B"),
        """\
None does not name a value.
  A value is named by its path or by the line that computes it.
Fix one of: plan.why('params.w1', 'tp: S(0)') | plan.why('train.py:12', 'tp: S(0)')""",
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_without_an_answer(question):
    (asked, word, *which), text = QUESTIONS[question]
    with pytest.raises(sbp.SbpError) as caught:
        plan_of("mlp", hardware="h100").why(asked, word, which=which[0] if which else None)
    assert short(caught.value) == text


def test_a_value_is_chosen_by_number_name_or_type():
    plan = plan_of("mlp", hardware="h100")
    by_number = str(plan.why(LINE, "tp: B", which=2))
    assert str(plan.why(LINE, "tp: B", which="f32[16,8]")) == by_number
    assert str(plan.why(LINE, "tp: B", which="f32[16@tp,8]{U:dp}")) == by_number
    with pytest.raises(sbp.SbpError, match=r"^which='dot_general' does not say"):
        plan.why(LINE, "tp: B", which="dot_general")


def test_a_loaded_plan_needs_its_step(tmp_path):
    plan_of("mlp").save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    with pytest.raises(sbp.PlanError) as caught:
        loaded.why("w1", "tp: B")
    assert (
        str(caught.value)
        == """\
this plan of mlp cannot say why.
  The question is answered by planning again, and a plan that was read from a file or copied has \
no program to plan.
Fix: ask the plan of a step: step.plan(...).why(...), with sbp.parallelize(..., plan=loaded) \
for a saved one"""
    )
    again = sbp.parallelize(mlp, mesh=MESH, plan=loaded).plan(X, W1, W2)
    assert str(again.why("w1", "tp: S(0)")) == str(plan_of("mlp").why("w1", "tp: S(0)"))


def test_answers_can_be_asked_further():
    answer = plan_of("mlp").why("w1", "tp: S(0)")
    assert answer.plan.why("w1", "tp: S(0)").kind == "same"
    assert answer.plan.why("w1", "tp: S(1)").kind == "illegal"
    again = answer.plan.why("w2", "tp: B, dp: B")
    assert dict(again.plan.arguments)["w1"]["tp"] == sbp.S(0)
    assert jax.tree.structure(again.plan.in_sbp) == jax.tree.structure(answer.plan.in_sbp)


def test_a_mesh_of_three_axes():
    mesh = AbstractMesh((2, 2, 2), ("dp", "fsdp", "tp"))
    plan = sbp.parallelize(mlp, mesh=mesh, hardware="h100").plan(X, W1, W2)
    answer = plan.why("result", "dp: B, fsdp: B, tp: B")
    assert answer.kind == "dearer"
    inside = plan.why(LINE, "dp: B, fsdp: B, tp: B", which="max")
    assert inside.kind == "dearer"
    assert "all-reduce" not in str(inside).splitlines()[0]


def test_no_pin_forbids_words_on_an_axis_of_one_device():
    mesh = flowjax.make_mesh("dp=2,one=1,tp=4")
    step = sbp.parallelize(mlp, mesh=mesh, in_sbp={"w1": "one: B"})
    answer = step.plan(X, W1, W2).why("w1", "dp: B, one: S(0), tp: S(0)")
    assert answer.kind == "dearer"
    assert dict(answer.plan.arguments)["w1"]["tp"] == sbp.S(0)


@pytest.mark.parametrize("which", [True, False])
def test_a_bool_is_no_number_of_a_value(which):
    with pytest.raises(sbp.SbpError, match=f"which={which} does not say which value of"):
        plan_of("mlp").why(LINE, "tp: B", which=which)
