"""Options of Python in the words of the command line."""

import pytest

from flowjax.cli.arguments import make_parser
from flowjax.cli.wording import _FLAGS, as_typed
from sbp.errors import SbpError

TEXTS = {
    "memory_limit=20480": "--memory-limit 20480",
    "train needs 3 KiB, memory_limit is 1 KiB": "train needs 3 KiB, --memory-limit is 1 KiB",
    "max_nbytes='80GiB'": "--max-bytes 80GiB",
    "objective='bytes' sends the least": "--objective bytes sends the least",
    "cluster='h100'": "--hardware h100",
    "hardware='machine.json', measured": "--hardware machine.json, measured",
    "leave out max_axes=": "leave out --max-axes",
    "axes=('dp', 'tp') where pins name them": "--axes dp,tp where pins name them",
    "axes=['a', 'a'] are not names": "--axes a,a are not names",
    "devices=8": "--devices 8",
    "donate_argnames names 'x'": "--donate names 'x'",
    "in_sbp pattern 'q' matches nothing": "--in-sbp pattern 'q' matches nothing",
    "out_sbp='dp: S(0)'": "--out-sbp '*=dp: S(0)'",
    "a plan; explain() lists what it sends": (
        "a plan; without --max-bytes flowjax plan lists what it sends"
    ),
    # What only looks like an option.
    "mesh devices=2 has 2": "mesh devices=2 has 2",
    "mesh 'axes=0' gives axis 'axes' the size 0": "mesh 'axes=0' gives axis 'axes' the size 0",
    "jax.config.update('jax_num_cpu_devices', 8)": "jax.config.update('jax_num_cpu_devices', 8)",
    "scripts/calibrate.py --out machine.json": "scripts/calibrate.py --out machine.json",
}


@pytest.mark.parametrize("text", TEXTS)
def test_options_are_named_as_they_are_typed(text):
    told = as_typed(SbpError(text, where=text, why=text, how=text))
    assert {told.what, told.where, told.why, *told.how} == {TEXTS[text]}


def test_remedies_that_cannot_be_typed_are_left_out():
    told = as_typed(SbpError("no plan", how=["remove a pin", "pass tie=None", "sbp.Cluster"]))
    assert told.how == ("remove a pin",)
    assert as_typed(SbpError("no plan", how="pass tie=None")).how == ("pass tie=None",)


def test_flags_exist():
    words = ["plan", "m:f", "--devices", "2"]
    for flag in {*_FLAGS.values()} - {"--devices", "--mesh", "--plan"}:
        value = {"--objective": "wire", "--lowering": "auto", "--max-axes": "1"}.get(flag, "x")
        make_parser(len, len).parse_args([*words, flag, value])
    make_parser(len, len).parse_args(["audit", "m:f", "--mesh", "dp=2", "--plan", "plan.json"])
