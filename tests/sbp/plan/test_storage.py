"""Plans in files: what is read back is what was written, and what is no plan is refused."""

import copy
import json
import math
import pickle

import jax
import jax.numpy as jnp
import pytest

import sbp
from sbp.plan.storage import FORMAT
from tests.one_device import MESH
from tests.sbp.plan.test_plan import STEPS, X, plan_of


@pytest.mark.parametrize("name", STEPS)
def test_equal_plans_give_equal_files(name, tmp_path):
    plan = plan_of(name)
    for number, one in enumerate((plan, plan_of(name))):
        one.save(tmp_path / f"{number}.json")
    loaded = sbp.Plan.load(tmp_path / "0.json")
    loaded.save(tmp_path / "2.json")
    contents = {(tmp_path / f"{number}.json").read_bytes() for number in range(3)}
    assert len(contents) == 1
    assert loaded == plan
    assert [row.live_nbytes for row in loaded.equations] == [r.live_nbytes for r in plan.equations]
    assert hash(loaded.equations) == hash(plan.equations)


def of_many_types(key, x):
    one, other = jax.random.split(key)
    y = jax.random.normal(one, x.shape) + x
    smaller = jax.lax.cond(y.sum() > 0, lambda a: a.max(0), lambda a: -a.min(0), y)
    return smaller, jax.random.bernoulli(other, 0.5, x.shape), x.astype("bfloat16"), jnp.fft.fft(x)


@pytest.mark.parametrize(
    ("fn", "args"),
    [(of_many_types, (jax.random.key(0), X)), (lambda: jnp.arange(8.0), ()),
     (lambda x: (x, x * 2), (X[:0],))],
)  # fmt: skip
def test_a_plan_of_arrays_of_any_type_is_read_back(fn, args, tmp_path):
    plan = sbp.parallelize(fn, mesh=MESH).plan(*args)
    plan.save(tmp_path / "plan.json")
    assert sbp.Plan.load(tmp_path / "plan.json") == plan


def test_the_file_says_its_version_first(tmp_path):
    plan_of("mlp").save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert text.startswith(f'{{\n "format": {FORMAT},\n "name": "mlp",\n')
    assert text.endswith("}\n")


def refusal(path, content):
    path.write_bytes(content)
    with pytest.raises(sbp.PlanError) as caught:
        sbp.Plan.load(path)
    head, *why, how = str(caught.value).splitlines()
    assert head == f"{path} does not hold a plan of format {FORMAT}."
    assert how == "Fix: write it again with Plan.save of this version"
    return "\n".join(why)


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"5", b"null", b"{}", b"\xff\xfe", b'{"name": 1}']
)
def test_a_file_that_holds_no_plan(content, tmp_path):
    assert refusal(tmp_path / "plan.json", content).startswith("  It")


@pytest.mark.parametrize("version", [0, 1, FORMAT + 1, "x", None])
def test_a_file_of_another_version(version, tmp_path):
    content = json.dumps({"format": version}).encode()
    assert refusal(tmp_path / "plan.json", content) == (
        f"  It is of format {version!r}: another version of sbp wrote it."
    )


def test_a_file_that_is_cut_off_anywhere(tmp_path):
    plan_of("mlp").save(tmp_path / "plan.json")
    content = (tmp_path / "plan.json").read_bytes()
    for length in range(0, len(content) - 2, len(content) // 40):
        why = refusal(tmp_path / "cut.json", content[:length])
        assert why.startswith("  It is not JSON, or not all of it: ")


CHANGES = {
    "a field is missing": lambda data: data.pop("choices"),
    "there is one more": lambda data: data.update(colour="red"),
    "a number is text": lambda data: data.update(cost_seconds="fast"),
    "rows have other fields": lambda data: data["boxings"][0].pop("axes"),
    "words cannot be read": lambda data: data["arguments"][0].__setitem__(1, "(dp: Q)"),
    "rows are a number": lambda data: data.update(equations=3),
    "rows are text": lambda data: data.update(equations=["row"]),
    "a number of a row is text": lambda data: data["boxings"][0].update(nbytes="many"),
    "axes of a row are numbers": lambda data: data["boxings"][0].update(axes=[1]),
    "the mesh is a number": lambda data: data.update(mesh_sizes=5),
    "the mesh has no axes": lambda data: data.update(mesh_sizes={}),
    "an axis has no devices": lambda data: data["mesh_sizes"].update(dp=0),
    "words of another mesh": lambda data: data["arguments"][0].__setitem__(1, "(dp: B)"),
    "ties are text": lambda data: data.update(ties="x"),
    "choices are numbers": lambda data: data.update(choices=[[9, 9, 9]]),
    "an empty choice": lambda data: data["choices"].__setitem__(0, []),
    "a choice of no word": lambda data: data["choices"].__setitem__(0, ["Q", "B"]),
    "a choice on one axis": lambda data: data["choices"].__setitem__(0, ["B"]),
    "a choice of three sides": lambda data: data["choices"].__setitem__(0, [[], [], []]),
    "shared words on one axis": lambda data: data.update(shared=[["B"]]),
}


DEEP = b"[" * 100_000
"""More than Python's stack holds."""


@pytest.mark.parametrize(
    "content", [DEEP, b'{"format":' + DEEP, b'{"format": 2, "choices": ' + DEEP]
)
def test_a_file_that_is_nested_too_deep(content, tmp_path):
    assert refusal(tmp_path / "plan.json", content) == "  It is nested deeper than any plan."


PLACES = {
    ("boxings", 0, "nbytes"): (-1, "boxings[0].nbytes is -1, not a number from 0 to 1e+100"),
    ("boxings", 0, "seconds"): (
        math.nan, "boxings[0].seconds is nan, not a number from 0 to 1e+100"),
    ("equations", 1, "flops"): (1.5, "equations[1].flops is 1.5"),
    ("boxings", 0, "axes"): (["pp"], "boxings[0].axes[0] is 'pp', but the mesh has dp, tp"),
    ("boxings", 0, "src"): ("(pp: P)", "boxings[0].src is '(pp: P)', but the mesh has dp, tp"),
    ("boxings", 0, "dst"): (
        "(dp: S(2))", "boxings[0].dst is '(dp: S(2))', which splits a dim that does not exist"),
    ("boxings", 0, "value_type"): (
        "f32[8,", "boxings[0].value_type is 'f32[8,', not the type of an array"),
    ("equations", 2, "operands", 1): (None, "equations[2].operands[1] is None"),
    ("equations", 0, "signature"): (
        "dp: Q -> B; tp: B -> B", "equations[0].signature is 'Q': 'Q' is not a word"),
    ("arguments", 0, 1): ("(dp: Q)", "arguments[0][1] is '(dp: Q)': 'Q' is not a word"),
    ("results", 0): (["x"], "results[0] is ['x']"),
    ("choices", 0, 1): ("Q", "choices[0] is 'Q': 'Q' is not a word"),
    ("mesh_sizes", "tp"): (2.5, "mesh_sizes.tp is 2.5"),
    ("objective",): ("speed", "objective is 'speed', none of time, bytes, wire"),
    ("wire_nbytes",): (7, "wire_nbytes is 7, but its lines add up to 64"),
    ("cost",): (1e400, "cost is inf, not a number from 0 to 1e+100"),
    ("lower_bound",): (1e90, "lower_bound is 1e+90, above the cost"),
    ("notes",): ({}, "notes is {}"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_an_impossible_value_is_named_with_its_place(place, tmp_path):
    value, told = PLACES[place]
    plan_of("mlp", hardware="h100").save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    change(data, place, value)
    why = refusal(tmp_path / "plan.json", json.dumps(data).encode())
    assert why == f"  A field is missing or wrong: {told}."


def change(data, place, value):
    """Changes one place of JSON, and returns what was there."""
    *outer, last = place
    for key in outer:
        data = data[key]
    old, data[last] = data[last], value
    return old


def places(data, place=()):
    """Every place in JSON, containers too; of a list of rows the first two."""
    if place:
        yield place
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(min(2, len(data))):
            yield from places(data[key], (*place, key))


STRANGE = (-1, "x", None, [], {}, 1e400, math.nan, True, 10**400)


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: repr(value)[:8])
def test_a_changed_file_is_refused_or_holds_a_plan(value, tmp_path):
    plan_of("sharded").save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    refused = 0
    for place in [*places(data)]:
        old = change(data, place, value)
        (tmp_path / "plan.json").write_text(json.dumps(data))
        try:
            plan = sbp.Plan.load(tmp_path / "plan.json")
        except sbp.PlanError:
            refused += 1
        else:
            assert plan.explain()
            plan.save(tmp_path / "again.json")
            assert sbp.Plan.load(tmp_path / "again.json") == plan
        change(data, place, old)
    assert refused


def test_a_file_that_lacks_any_field_names_it(tmp_path):
    plan_of("sharded").save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    for record, at in ((data, ""), (data["boxings"][0], "boxings[0]."),
                       (data["equations"][1], "equations[1].")):  # fmt: skip
        for name in [*record]:
            if name == "format":
                continue
            old = record.pop(name)
            why = refusal(tmp_path / "plan.json", json.dumps(data).encode())
            assert why == f"  A field is missing or wrong: {at}{name} is missing."
            record[name] = old
        record["colour"] = "red"
        why = refusal(tmp_path / "plan.json", json.dumps(data).encode())
        assert why == f"  A field is missing or wrong: {at}colour is not known."
        del record["colour"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_with_other_fields(change, tmp_path):
    plan_of("mlp").save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    CHANGES[change](data)
    why = refusal(tmp_path / "plan.json", json.dumps(data).encode())
    assert why.startswith("  A field is missing or wrong: ")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(sbp.SbpError, match=r"none.json' cannot be read\.\n  No such file"):
        sbp.Plan.load(tmp_path / "none.json")


@pytest.mark.parametrize("write", ["save", "write_html"])
def test_a_file_that_cannot_be_written(write, tmp_path):
    with pytest.raises(sbp.SbpError) as caught:
        getattr(plan_of("mlp"), write)(tmp_path / "nope" / "x")
    assert str(caught.value) == (
        f"'{tmp_path}/nope/x' cannot be written.\n"
        f"  There is no folder '{tmp_path}/nope'.\n"
        f"Fix one of: mkdir -p {tmp_path}/nope | a path in a folder that is there"
    )


def test_a_copied_plan_is_the_same_plan_without_its_origin():
    plan = plan_of("mlp")
    for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert other == plan
        assert plan.origin is not None
        assert other.origin is None
