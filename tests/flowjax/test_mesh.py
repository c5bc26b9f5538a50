"""Meshes from text: what is read, what is refused, and how."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import flowjax
from sbp.errors import SbpError


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("dp=8", {"dp": 8}),
        ("dp=2,tp=4", {"dp": 2, "tp": 4}),
        (" tp = 4 , dp = 1 ", {"tp": 4, "dp": 1}),
    ],
)
def test_axes_keep_their_order(text, axes):
    assert list(flowjax.parse_mesh(text).items()) == list(axes.items())


@pytest.mark.parametrize("axes", ["dp=2,tp=4", {"dp": 2, "tp": 4}])
def test_mesh_has_auto_axes_over_the_first_devices(axes):
    mesh = flowjax.make_mesh(axes)
    assert dict(mesh.shape) == {"dp": 2, "tp": 4}
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert set(flowjax.make_mesh("dp=2").devices.flat) == set(jax.devices()[:2])


def test_axis_types_and_devices_can_be_given():
    devices = jax.devices()[4:]
    mesh = flowjax.make_mesh("dp=2,tp=2", devices, axis_types=AxisType.Explicit)
    assert mesh.axis_types == (AxisType.Explicit, AxisType.Explicit)
    assert set(mesh.devices.flat) == set(devices)
    mixed = flowjax.make_mesh("dp=2,tp=2", axis_types=(AxisType.Explicit, AxisType.Auto))
    assert mixed.axis_types == (AxisType.Explicit, AxisType.Auto)


ERRORS = {
    "": """\
mesh '' has the item '' (make_mesh).
  A mesh is a list of axes, each a name, '=' and a whole number.
Fix: write it like 'dp=2,tp=4'""",
    "dp=2;tp=4": """\
mesh 'dp=2;tp=4' has the item 'dp=2;tp=4' (make_mesh).
  A mesh is a list of axes, each a name, '=' and a whole number.
Fix: write it like 'dp=2,tp=4'""",
    "dp=2,dp=4": """\
mesh 'dp=2,dp=4' names axis 'dp' twice (make_mesh).
  An axis has one size.
Fix one of: different names | one axis of both: 'dp=8'""",
    "dp=2,tp=0": """\
mesh 'dp=2,tp=0' gives axis 'tp' the size 0 (make_mesh).
  An axis has at least one device.
Fix: leave 'tp' out""",
    "dp=4,tp=4": """\
mesh 'dp=4,tp=4' needs 16 devices, there are 8 (make_mesh).
  Each point of a mesh is a device of its own.
Fix one of: a smaller mesh | simulate them on the CPU, before JAX is first used: \
jax.config.update('jax_num_cpu_devices', 16), or \
XLA_FLAGS=--xla_force_host_platform_device_count=16""",
}


@pytest.mark.parametrize("text", ERRORS)
def test_bad_mesh_says_how_to_mend_it(text):
    with pytest.raises(SbpError) as caught:
        flowjax.make_mesh(text)
    assert str(caught.value) == ERRORS[text]


def test_mesh_without_axes_is_refused():
    with pytest.raises(SbpError, match="the mesh has no axes"):
        flowjax.make_mesh({})


REFUSED = {
    "a number": (
        8, "8 is not a mesh (make_mesh).\n  A mesh is text, sizes by axis name, or a mesh of jax.",
    ),
    "nothing": (None, "None is not a mesh (make_mesh)."),
    "pairs": ((("dp", 2),), "(('dp', 2),) is not a mesh (make_mesh)."),
    "a float": (
        {"dp": 2.0},
        "mesh {'dp': 2.0} gives axis 'dp' the size 2.0 (make_mesh).\n  A size is a whole number.",
    ),
    "a truth": ({"dp": True}, "mesh {'dp': True} gives axis 'dp' the size True (make_mesh)."),
    "a name that is none": (
        {1: 2},
        "mesh {1: 2} has an axis called 1 (make_mesh).\n"
        "  Words name axes, so the name of an axis is text.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_mesh_is_refused(case):
    axes, text = REFUSED[case]
    with pytest.raises(SbpError) as caught:
        flowjax.make_mesh(axes)
    assert str(caught.value).startswith(text)


def test_sizes_may_be_whole_numbers_of_numpy():
    assert dict(flowjax.make_mesh({"dp": np.int64(2)}).shape) == {"dp": 2}
    with pytest.raises(SbpError, match="8 is not a mesh"):
        flowjax.parse_mesh(8)


def test_a_device_stands_at_one_point_of_a_mesh():
    first, second = jax.devices()[:2]
    with pytest.raises(SbpError) as caught:
        flowjax.make_mesh("dp=3", [first, second, first])
    assert str(caught.value) == (
        f"devices has {first!r} 2 times (make_mesh).\n"
        "  Each point of a mesh is a device of its own.\n"
        "Fix: name each device once: devices=jax.devices()"
    )


@pytest.mark.parametrize("devices", [[1, 2], 3, "cpu"])
def test_devices_are_those_of_jax(devices):
    with pytest.raises(SbpError, match=r"which is no device \(make_mesh\)"):
        flowjax.make_mesh("dp=1", devices)


def test_devices_may_come_as_an_array():
    mesh = flowjax.make_mesh("dp=2,tp=4")
    assert set(flowjax.make_mesh("tp=8", mesh.devices).devices.flat) == set(jax.devices())


@pytest.mark.parametrize("types", ["Auto", [], (AxisType.Auto,), [1, 2]])
def test_axis_types_are_those_of_jax_one_for_each_axis(types):
    with pytest.raises(SbpError, match="are not the types of 2 axes"):
        flowjax.make_mesh("dp=2,tp=4", axis_types=types)
