"""The calibration: it fits what is there, writes a file that plans, and says what it cannot do."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import flowjax
import sbp
from sbp.cost_model import CostModel
from sbp.hardware import CPU, H100_NODE, Link
from scripts import calibrate


def test_a_quick_run_writes_a_file_that_plans(tmp_path, capsys):
    path = tmp_path / "machine.json"
    calibrate.main(["--devices", "2", "--quick", "--out", str(path)])
    out = capsys.readouterr().out
    assert "simulated devices share the cores of this host" in out
    for line in ("matmul bfloat16", "memory", "floor of a kernel", *calibrate.KINDS, "common"):
        assert f"\n{line} " in out
    own, common = out.split("\nall-to-all ")[1].split("\n")[0].split()[2:]
    assert own == "-"
    assert common.endswith("%")
    assert "'-': two sizes fix them exactly" in out
    cluster = sbp.Cluster.load(path)
    assert (cluster.name, cluster.devices_per_node) == ("measured-cpu-2", 2)
    assert "the link to other nodes nominal (cpu)" in cluster.source
    x = np.ones((8, 8), np.float32)
    step = sbp.parallelize(jnp.matmul, mesh=flowjax.make_mesh("dp=2"), hardware=path)
    assert step.plan(x, x).cluster == "measured-cpu-2"


def test_one_device_has_no_links_to_measure(tmp_path, capsys):
    path = tmp_path / "machine.json"
    calibrate.main(["--devices", "1", "--quick", "--out", str(path)])
    assert "its links are the nominal ones of 'cpu', not measured" in capsys.readouterr().out
    cluster = sbp.Cluster.load(path)
    assert (cluster.inside, cluster.outside) == (CPU.inside, CPU.outside)
    assert cluster.device.flops["float32"] != CPU.device.flops["float32"]
    assert "links nominal" in cluster.source


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_fit_finds_the_link_that_made_the_times(noise):
    size, true = 8, Link(2e10, 3e-6)
    costs = CostModel(dataclasses.replace(H100_NODE, inside=true), (size,))
    random = np.random.default_rng(0)
    samples = []
    for kind in calibrate.KINDS:
        for nbytes in (2**k for k in range(12, 27, 2)):
            step, _ = calibrate.collective_step(kind, nbytes, size)
            factor = 1 + noise * random.uniform(-1, 1)
            samples.append(calibrate.Sample(step, costs.step_seconds(step) * factor))
    found = calibrate.fit_link(samples, size, H100_NODE.device)
    assert found.bandwidth == pytest.approx(true.bandwidth, rel=1e-6 + noise)
    assert found.latency == pytest.approx(true.latency, rel=1e-6 + noise)
    error = calibrate.relative_error(samples, found, costs.cluster)
    assert error <= noise + 1e-6


def test_a_link_without_latency_is_fitted_by_its_bandwidth():
    samples = []
    for nbytes in (2**20, 2**24):
        step, _ = calibrate.collective_step("all-gather", nbytes, 4)
        # Small ones are faster a byte than large ones: no latency explains that.
        samples.append(calibrate.Sample(step, step.nbytes / (1e9 if nbytes == 2**24 else 2e9)))
    found = calibrate.fit_link(samples, 4, H100_NODE.device)
    assert found.latency == 0
    assert 1e9 < found.bandwidth < 2e9


def test_a_bad_option_is_one_clear_error(tmp_path, capsys):
    for options, message in (
        (["--devices", "0"], "--devices must be at least 1"),
        (["--devices", "99"], "--devices is 99, there are 8"),
        (["--out", "machine.txt"], "it must be a .json file in a directory that exists"),
        (["--out", str(tmp_path / "no" / "such.json")], "a directory that exists"),
    ):
        with pytest.raises(SystemExit):
            calibrate.main(options)
        assert message in capsys.readouterr().err
