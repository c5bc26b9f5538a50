"""What parsed arguments stand for in `sbp.parallelize`."""

from flowjax.cli.arguments import make_parser, step_options


def nothing(options):
    return 0


def parsed(*words):
    return make_parser(nothing, nothing).parse_args(words)


def test_every_option_of_a_step_is_passed_on():
    options = parsed(
        "plan", "m:f", "--mesh", "dp=2", "--in-sbp", "x = dp: S(0)", "--in-sbp", "w.*=dp: B",
        "--out-sbp", "loss=dp: B", "--donate", "0, state,", "--memory-limit", "80GiB",
        "--objective", "bytes", "--lowering", "auto",
    )  # fmt: skip
    assert step_options(options) == {
        "in_sbp": {"x": "dp: S(0)", "w.*": "dp: B"},
        "out_sbp": {"loss": "dp: B"},
        "donate_argnums": (0,),
        "donate_argnames": ("state",),
        "memory_limit": "80GiB",
        "objective": "bytes",
        "lowering": "auto",
    }
    assert options.run is nothing


def test_what_is_not_said_is_left_to_parallelize():
    assert step_options(parsed("audit", "m:f")) == {}


def test_a_size_without_a_unit_is_in_bytes():
    options = parsed("plan", "m:f", "--mesh", "dp=2", "--memory-limit", "0", "--max-bytes", "1000")
    assert (step_options(options)["memory_limit"], options.max_bytes) == (0, 1000)
    options = parsed("audit", "step.txt", "--max-bytes", "20MB")
    assert options.max_bytes == "20MB"
