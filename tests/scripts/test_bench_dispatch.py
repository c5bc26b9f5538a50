"""The dispatch benchmark runs, and takes its steps in turn."""

import pytest

from scripts import bench_dispatch


def test_every_case_prints_a_row(capsys):
    bench_dispatch.main(["--rounds", "2", "--calls", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:32].strip() for line in lines[2:]] == [
        "1 leaf, 1 device",
        "35 leaves, 1 device",
        "1 leaf, 8 devices",
        "35 leaves, 8 devices",
        "1 leaf, 8 devices, all-reduce",
        "35 leaves, 8 devices, all-reduce",
    ]


def test_steps_are_called_in_turn_in_every_order():
    called = []
    steps = [lambda x, name=name: called.append(name) or x for name in "abc"]
    times = bench_dispatch.microseconds(steps, 1, 6, 1, blocking=False)
    assert all(0 < time < 1e6 for row in times for time in row)
    warm_up, rounds = called[:6], called[6:]
    assert warm_up == ["a", "a", "b", "b", "c", "c"]
    batches = ["".join(rounds[start : start + 3]) for start in range(0, 18, 3)]
    assert sorted(batches) == ["abc", "acb", "bac", "bca", "cab", "cba"]


def test_nothing_to_measure_is_an_error(capsys):
    with pytest.raises(SystemExit):
        bench_dispatch.main(["--rounds", "0"])
    assert "at least 1" in capsys.readouterr().err
