"""What `explain` prints: parts of the time and the memory, and one table of the whole program."""

import dataclasses
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import sbp
from sbp.plan.explain import MAX_COLUMNS, format_apart, shortened
from sbp.plan.lines import abbreviated, program_lines
from tests.one_device import MESH, whole
from tests.sbp.plan.test_plan import STEPS, X, mlp, plan_of

W = whole(8, 8, seed=5)
SOURCE = f"tests/sbp/plan/test_plan.py:{mlp.__code__.co_firstlineno + 1}"

EXPLAINED = """\
mlp on mesh dp=2, tp=4 (h100), objective time
  time    2 us a call: 2 us compute, 1.08 ns boxing, nothing overlapped
          compute           2 us     100%  3 equations
          all-reduce on tp  1.08 ns  0%    x1           384 B/device
  proof   gap 0.00%: no plan takes less than 2 us (elimination)
  wire    384 B/device in 1 collectives
  flops   2112/device, 1.000 of an even share
  memory  1.25 KiB/device at the peak, at SOURCE, predicted
          arguments            768 B  60%
          intermediate arrays  512 B  40%

          path  words
argument  x     (dp: S(0), tp: B)
argument  w1    (dp: B, tp: S(1))
argument  w2    (dp: B, tp: S(0))
result          (dp: S(0), tp: B)

"""
TABLE = """\
at          operation     operands                        result              boxing      axes  /device  times  time
SOURCE      dot_general   f32[16@dp,8]  f32[8,32@tp]      f32[16@dp,32@tp]                               x1     1 us
SOURCE      max           f32[16@dp,32@tp]  f32[]         f32[16@dp,32@tp]                               x1     0.153 ns
SOURCE      dot_general   f32[16@dp,32@tp]  f32[32@tp,8]  f32[16@dp,8]{U:tp}                             x1     1 us
the result  return
the result    all-reduce  f32[16@dp,8]{U:tp}              f32[16@dp,8]        tp: P -> B  tp    384 B    x1     1.08 ns"""  # noqa: E501


def short(text):
    """The text with the path of the function's line cut, and the columns behind it moved up."""
    width, shown = len(SOURCE), len("the result")
    lines = []
    for line in text.splitlines():
        head = line[:width]
        if head == SOURCE or head.rstrip() in ("at", "the result"):
            line = head.replace(SOURCE, "SOURCE").rstrip().ljust(shown) + line[width:]
        lines.append(line.replace(SOURCE, "SOURCE").rstrip())
    return "\n".join(lines)


def test_a_plan_is_explained_line_by_line():
    text = plan_of("megatron", hardware="h100").explain()
    assert short(text) == EXPLAINED + TABLE
    assert str(plan_of("megatron", hardware="h100")) == text


def test_the_summary_is_the_head():
    plan = plan_of("megatron", hardware="h100")
    assert plan.explain().startswith(plan.summary() + "\n\n")
    assert plan.summary().endswith("intermediate arrays  512 B  40%")


@pytest.mark.parametrize("name", STEPS)
def test_no_line_ends_in_blanks_and_every_row_is_there_once(name):
    plan = plan_of(name)
    assert all(line == line.rstrip() for line in plan.explain().splitlines())
    lines = program_lines(plan)
    assert [line.operation for line in lines if line.kind == "equation"] == [
        row.primitive for row in plan.equations
    ]
    boxed = [line for line in lines if line.kind == "boxing"]
    assert sorted(line.operation for line in boxed) == sorted(r.collective for r in plan.boxings)
    assert sum(line.seconds for line in lines) == pytest.approx(plan.cost_seconds)


@pytest.mark.parametrize("name", STEPS)
def test_a_boxing_stands_below_what_reads_its_result(name):
    plan = plan_of(name)
    lines = program_lines(plan)
    for k, line in enumerate(lines):
        if line.kind != "boxing":
            continue
        last = k + 1 == len(lines) or lines[k + 1].kind != "boxing"
        owner = next(x for x in reversed(lines[:k]) if x.kind != "boxing")
        if owner.kind == "equation" and last:
            assert line.results[0] in owner.operands
            assert line.source == owner.source


def test_a_loop_shows_what_flows_into_it():
    lines = program_lines(plan_of("sharded"))
    owners = {line.operation for line in lines if line.kind == "reader"}
    assert {"loop input", "return"} <= owners
    gathered = [line for line in lines if line.operation == "all-gather"]
    assert "params.w" in {name for line in gathered for name in line.arrays}
    (loss,) = [line for line in lines if line.source == "result 1" and line.kind == "boxing"]
    assert loss.operation == "all-reduce"
    assert lines[-1] == loss


def test_what_a_loop_carries_is_boxed_behind_its_body():
    def turned(x):
        def body(h, _):
            return sbp.pin(jnp.sort(sbp.pin(h, "dp: S(0)")), "dp: S(1)"), None

        return jax.lax.scan(body, x, None, length=5)[0]

    mesh = AbstractMesh((2,), ("dp",))
    plan = sbp.parallelize(turned, mesh=mesh, in_sbp="dp: S(0)", out_sbp="dp: S(0)").plan(X)
    number = next(k for k, row in enumerate(plan.equations) if row.primitive == "sort")
    (row,) = [row for row in plan.boxings if row.reader == "loop carry"]
    assert (row.equation, row.count, row.dst) == (number + 1, 5, "(dp: S(0))")


def test_a_tied_result_is_boxed_at_its_end_not_at_the_argument():
    plan = sbp.parallelize(
        lambda w, x: x.T @ x, mesh=MESH, donate_argnums=0, tie={"": "w"},
        in_sbp={"w": "dp: B, tp: B", "x": "dp: S(0), tp: S(0)"},
    ).plan(W, X)  # fmt: skip
    (row,) = plan.boxings
    assert (row.source, row.reader) == ("the result", "the result")
    assert row.equation == len(plan.equations)


def test_top_keeps_the_dearest_in_program_order():
    plan = plan_of("sharded", hardware="h100")
    text = plan.explain(top=3)
    rows = [line for line in text.splitlines() if " x1 " in line or " x3 " in line][-3:]
    assert [row.split()[1] for row in rows] == ["dot_general"] * 3
    dearest = sorted((line.seconds for line in program_lines(plan)), reverse=True)[:3]
    share = sum(dearest) / plan.cost_seconds
    assert text.endswith(f"\n\n3 of {len(program_lines(plan))} lines, {share:.0%} of the time")
    assert plan.explain(top=10**6) == plan.explain()


@pytest.mark.parametrize("top", [0, -1, 2.5, "3", True])
def test_top_is_a_number_of_lines(top):
    with pytest.raises(sbp.SbpError) as caught:
        plan_of("mlp").explain(top=top)
    assert str(caught.value) == (
        f"top={top!r} is not a number of lines.\n"
        "  explain shows the dearest so many lines.\n"
        "Fix one of: top=20 | top=None shows all"
    )


@pytest.mark.parametrize("where", ["dot_general", "dot_*", "*_general"])
def test_where_keeps_lines_of_an_operation(where):
    text = plan_of("megatron").explain(where=where)
    table = text[text.index("\nat ") :]
    assert table.count("dot_general") == 2
    assert " max " not in table
    assert "\nargument" not in text
    assert "\n2 of 5 lines" in text


def test_where_finds_arrays_at_the_ends_and_inside():
    text = plan_of("sharded").explain(where="params.v")
    assert "argument  params.v  (dp: B, tp: B)" in text
    assert "params.w" not in text
    assert " sub " in text
    # What an equation needs is shown with it.
    assert re.search(r"all-reduce +f32\[8\]\{U:dp,tp\}", text)


def test_where_finds_lines_and_takes_top():
    plan = plan_of("megatron")
    name = os.path.basename(SOURCE)
    assert plan.explain(where=name).count(SOURCE) == 3 + 1
    assert "\n1 of 5 lines" in plan.explain(where=name, top=1)
    assert "the result  return\nthe result    all-reduce" in short(plan.explain(where="the result"))


def test_where_that_matches_nothing():
    with pytest.raises(sbp.SbpError) as caught:
        plan_of("megatron").explain(where="dot_genral")
    assert (
        str(caught.value)
        == """\
where='dot_genral' matches nothing in the plan of mlp.
  It is looked for in source lines, operations and paths of arrays.
  The operations are all-reduce, dot_general, max, return.
Fix one of: where='dot_general' | leave where out"""
    )


def test_where_is_text():
    with pytest.raises(sbp.SbpError, match=r"^where=3 is not text\.\n"):
        plan_of("mlp").explain(where=3)


def test_explain_lists_ties_and_notes():
    def noted(state, x):
        shape = jax.ShapeDtypeStruct(state.shape, state.dtype)
        return state + jax.pure_callback(np.sin, shape, x)

    plan = sbp.parallelize(noted, mesh=MESH, donate_argnums=0).plan(X, X)
    assert "\ntied to an argument, with its words: the result = state\n" in plan.explain()
    assert "\nnote: pure_callback has no rule and runs replicated (" in plan.explain()


def test_time_is_split_by_collective_and_axes():
    plan = plan_of("sharded", hardware="h100")
    head = plan.summary().splitlines()
    parts = head[head.index(next(x for x in head if x.startswith("          compute"))) :]
    parts = parts[: parts.index(next(x for x in parts if x.startswith("  proof")))]
    names = {" ".join(part.split("  ")[5].split()) for part in parts}
    kinds = {f"{r.collective} on {', '.join(r.axes)}" for r in plan.boxings if not r.is_local}
    assert names == {"compute", "words changed in place", *kinds}


def test_many_types_are_cut_between_types():
    assert abbreviated(["f32[8]"] * 3) == "f32[8]  f32[8]  f32[8]"
    assert abbreviated(["f32[8]"] * 30, 30) == "f32[8]  f32[8]  and 28 more"
    assert abbreviated(["f32[8]" * 9, "f32[]"], 20) == "f32[8]" * 9 + "  and 1 more"
    assert abbreviated([]) == ""


def test_no_line_is_wider_than_a_wide_terminal():
    plan = plan_of("sharded", mesh=AbstractMesh((2, 4), ("a" * 30, "b" * 30)), hardware="h100",
                   in_sbp=None)  # fmt: skip
    folder = "/home/user" + "/folder" * 20
    plan = dataclasses.replace(
        plan,
        name="step_" * 40,
        notes=("one word after another " * 20,),
        memory_source=f"{folder}/train.py:12",
        equations=tuple(
            dataclasses.replace(row, source=f"{folder}/train.py:{k}")
            for k, row in enumerate(plan.equations)
        ),
        arguments=tuple((path * 30, words) for path, words in plan.arguments),
    )
    lines = plan.explain().splitlines()
    assert max(map(len, lines)) <= MAX_COLUMNS
    # A source keeps its line, a note keeps every word.
    assert any(re.match(r"\.\.\.\S*:3  ", line) for line in lines)
    assert "".join(lines).count("another") == 20


def test_a_text_is_shortened_in_its_middle():
    assert shortened("/home/user/models/train.py:12", 29) == "/home/user/models/train.py:12"
    assert shortened("/home/user/models/train.py:12", 22) == "/home/...s/train.py:12"
    for width in range(3, 40):
        assert len(shortened("x" * 60, width)) == width


def test_sizes_that_differ_are_never_printed_as_equal():
    assert format_apart(131_072, 131_072) == ("128 KiB", "128 KiB")
    assert format_apart(131_073, 131_072) == ("131,073 B", "131,072 B")
    assert format_apart(2**17, 2**18) == ("128 KiB", "256 KiB")
    plan = plan_of("mlp")
    plans = [dataclasses.replace(plan, memory_nbytes=nbytes) for nbytes in (131_073, 131_072)]
    assert plans[0].diff(plans[1]) == "memory: 131,073 B -> 131,072 B"
