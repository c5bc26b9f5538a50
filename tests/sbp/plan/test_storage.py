"""Plans in files: what is read back is what was written, and what is no plan is refused."""

import copy
import json
import pickle

import pytest

import sbp
from sbp.plan.storage import FORMAT
from tests.sbp.plan.test_plan import STEPS, plan_of


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
