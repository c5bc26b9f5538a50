"""Every form in which XLA prints collectives, from texts of jaxlib 0.10.2 and 0.12.0.1."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp.collectives import audit
from sbp.collectives.hlo_text import parse_module, trip_count
from sbp.collectives.program import find_collectives
from sbp.collectives.replica_groups import axes_of_groups, axes_of_pairs, expand_replica_groups
from sbp.errors import SbpError

MESH = {"a": 2, "b": 4}
COLUMNS = ((0, 4), (1, 5), (2, 6), (3, 7))
ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))
ALL = ((0, 1, 2, 3, 4, 5, 6, 7),)


def module(*lines):
    """A module of 8 partitions around instructions that read %p (f32[4,4]) and %q (bf16[16])."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"""HloModule m, is_scheduled=true, num_partitions=8

%region_0.0 (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}}

ENTRY %main.0_spmd (p: f32[4,4], q: bf16[16]) -> f32[4,4] {{
  %p = f32[4,4]{{1,0}} parameter(0)
  %q = bf16[16]{{0:T(256)(128)(2,1)}} parameter(1)
{body}
}}
"""


GROUP_FORMS = {
    "{{0,4},{1,5},{2,6},{3,7}}": COLUMNS,
    "{{0,1,2,3}, {4,5,6,7}}": ROWS,
    "{}": ALL,
    "[2,4]<=[8]": ROWS,
    "[4,2]<=[2,4]T(1,0)": COLUMNS,
    "[4,2]<=[2,2,2]T(0,2,1)": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['a'=2,'b'=4] {'a'}": COLUMNS,
    "mesh['a'=2,'b'=4] {'b'}": ROWS,
    "mesh['a'=2,'b'=4] {'b','a'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['a'=2,'b'=4] {'b':(2)2}": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "mesh['a'=2,'b'=4] {'b':(1)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['axis_0'=8,'axis_1'=1], device_ids=([2,4]T(1,0)) {'axis_0'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,2,2]T(0,2,1)) {'axis_0':(2)2}": (
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ),
    "mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b','a':(1)2}": ((0, 2, 4, 6, 1, 3, 5, 7),),
    "mesh['a'=4,'b'=2] {'b','a':(1)2}": ((0, 4, 1, 5), (2, 6, 3, 7)),
    "mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'y'}": ((0, 2), (1, 3)),
    "mesh[a=2,b=4] {a}": COLUMNS,
    "maximal_mesh[device_id=3] {}": ((3,),),
}


@pytest.mark.parametrize(("text", "groups"), GROUP_FORMS.items())
def test_groups_of_every_printed_form(text, groups):
    assert expand_replica_groups(text, 8) == groups


def test_an_unknown_group_form_is_an_error():
    with pytest.raises(SbpError, match="cannot read replica_groups=tiles<8>"):
        expand_replica_groups("tiles<8>", 8)


@st.composite
def meshes_and_axes(draw):
    """Axis sizes, an order in which the mesh counts its devices, and some axes in any order."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    names = [f"x{place}" for place in range(len(sizes))]
    order = draw(st.permutations(range(len(sizes))))
    axes = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return dict(zip(names, sizes, strict=True)), tuple(order), axes


def numpy_groups(ids, mesh_sizes, axes):
    names = list(mesh_sizes)
    moved = np.moveaxis(ids, [names.index(axis) for axis in axes], range(-len(axes), 0))
    groups = moved.reshape(-1, prod(mesh_sizes[axis] for axis in axes))
    return tuple(map(tuple, groups.tolist()))


@given(meshes_and_axes())
def test_mesh_form_expands_as_numpy_does(drawn):
    sizes, order, axes = drawn
    dims = tuple(sizes.values())
    counted = tuple(dims[place] for place in np.argsort(order))
    ids = np.arange(prod(dims)).reshape(counted).transpose(order)
    assert ids.shape == dims
    mesh = ",".join(f"'{axis}'={size}" for axis, size in sizes.items())
    iota = f"[{','.join(map(str, counted))}]T({','.join(map(str, order))})"
    listed = ",".join(map(str, ids.ravel().tolist()))
    named = ",".join(f"'{axis}'" for axis in axes)
    expected = numpy_groups(ids, sizes, axes)
    for device_ids in (iota, listed):
        text = f"mesh[{mesh}], device_ids=({device_ids}) {{{named}}}"
        assert expand_replica_groups(text, ids.size) == expected


@given(meshes_and_axes())
def test_iota_form_expands_as_numpy_does(drawn):
    sizes, _, axes = drawn
    dims = tuple(sizes.values())
    names = list(sizes)
    order = [names.index(axis) for axis in names if axis not in axes]
    order += [names.index(axis) for axis in axes]
    expected = numpy_groups(np.arange(prod(dims)).reshape(dims), sizes, axes)
    text = (
        f"[{len(expected)},{len(expected[0])}]<=[{','.join(map(str, dims))}]"
        f"T({','.join(map(str, order))})"
    )
    assert expand_replica_groups(text, prod(dims)) == expected


@given(st.lists(st.sampled_from([2, 3]), min_size=2, max_size=4), st.data())
def test_a_sub_axis_is_an_axis_of_the_factored_mesh(factors, data):
    first = data.draw(st.integers(0, len(factors) - 1))
    last = data.draw(st.integers(first, len(factors) - 1))
    before, size = prod(factors[:first]), prod(factors[first : last + 1])
    fine = {f"x{place}": factor for place, factor in enumerate(factors)} | {"y": 2}
    ids = np.arange(prod(fine.values())).reshape(tuple(fine.values()))
    expected = numpy_groups(ids, fine, ["y", *list(fine)[first : last + 1]])
    text = f"mesh['x'={prod(factors)},'y'=2] {{'y','x':({before}){size}}}"
    assert expand_replica_groups(text, ids.size) == expected


@given(meshes_and_axes())
def test_groups_of_a_set_of_axes_are_named_by_it(drawn):
    sizes, _, axes = drawn
    ids = np.arange(prod(sizes.values())).reshape(tuple(sizes.values()))
    groups = numpy_groups(ids, sizes, axes)
    named = tuple(axis for axis in sizes if axis in axes and sizes[axis] > 1)
    if named:
        assert axes_of_groups(groups, sizes) == named


def test_groups_along_half_an_axis_have_no_name():
    assert axes_of_groups(((0, 1), (2, 3), (4, 5), (6, 7)), MESH) is None


def test_pairs_are_named_by_the_axes_they_move_along():
    assert axes_of_pairs(((0, 1), (2, 3)), MESH) == ("b",)
    assert axes_of_pairs(((0, 4),), MESH) == ("a",)
    assert axes_of_pairs(((1, 4), (2, 1)), MESH) == ("a", "b")


# Instructions as printed, with (kind, axes, dtype, bytes) of what they communicate.
# %p is 64 bytes, %q is 32 bytes.
INSTRUCTIONS = {
    # CPU, 0.10.2 and 0.12.0.1
    "ROOT %psum.7 = f32[4,4]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},"
    "{3,7}}, use_global_device_ids=true, to_apply=%region_0.0": [
        ("all-reduce", ("a",), "float32", 64)
    ],
    "ROOT %psum.7 = f32[4,4]{1,0} all-reduce(%p), channel_id=1, replica_groups=mesh['a'=2,'b'=4] "
    "{'b','a'}, use_global_device_ids=true, to_apply=%region_0.0": [
        ("all-reduce", ("a", "b"), "float32", 112)
    ],
    "ROOT %ag.3 = f32[4,16]{0,1} all-gather(%p), channel_id=1, replica_groups=mesh['a'=2,'b'=4] "
    "{'b'}, dimensions={1}, use_global_device_ids=true": [("all-gather", ("b",), "float32", 192)],
    "ROOT %all-gather = f32[32,4]{1,0} all-gather(%p), channel_id=1, replica_groups=mesh['axis_0'=8"
    ",'axis_1'=1], device_ids=([2,4]T(1,0)) {'axis_0'}, dimensions={0}, "
    "use_global_device_ids=true": [("all-gather", ("a", "b"), "float32", 448)],
    "ROOT %rs.7 = f32[1,4]{1,0} reduce-scatter(%p), channel_id=1, replica_groups={{0,1,2,3},"
    "{4,5,6,7}}, use_global_device_ids=true, dimensions={0}, to_apply=%region_0.0": [
        ("reduce-scatter", ("b",), "float32", 48)
    ],
    "ROOT %all-to-all = (f32[4,4]{1,0}, f32[4,4]{1,0}) all-to-all(%p, %p), channel_id=1, "
    "replica_groups=mesh['a'=2,'b'=4] {'a'}": [("all-to-all", ("a",), "float32", 64)],
    "ROOT %all-to-all.1 = (f32[4,4]{1,0}, f32[4,4]{1,0}) all-to-all(%p, %p), channel_id=1, "
    "replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,2,2]T(0,2,1)) {'axis_0':(2)2}": [
        ("all-to-all", None, "float32", 64)
    ],
    "ROOT %all-reduce = (f32[4,4]{1,0}, f32[4,4]{1,0}, /*index=2*/f32[4,4]{1,0}) all-reduce(%p, %p,"
    " /*index=2*/%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, "
    "to_apply=%region_0.0": [("all-reduce", ("b",), "float32", 288)],
    "ROOT %ppermute.3 = f32[4,4]{1,0} collective-permute(%p), channel_id=1, "
    "source_target_pairs={{0,1},{2,2}}": [("collective-permute", ("b",), "float32", 64)],
    "ROOT %ppermute.3 = f32[4,4]{1,0} collective-permute(%p), channel_id=1, "
    "source_target_pairs={{0,0},{1,4},{2,1},{3,5},{4,2},{5,6},{6,3},{7,7}}": [
        ("collective-permute", ("a", "b"), "float32", 64)
    ],
    # H100, compiled ahead of time: synchronous on 0.12.0.1 ...
    "ROOT %a2a.2 = f32[4,4]{1,0} all-to-all(%p), channel_id=1, replica_groups=mesh['a'=2,'b'=4] "
    '{\'b\'}, dimensions={0}, metadata={op_name="jit(f)/all_to_all" scheduling_name="a, {b(" '
    'stack_frame_id=3}, backend_config={"operation_queue_id":"0","reification_cost":[]}': [
        ("all-to-all", ("b",), "float32", 48)
    ],
    "ROOT %all-gather.2 = (f32[8,4]{1,0}, bf16[32]{0}) all-gather(%p, %q), channel_id=1, "
    "replica_groups=mesh['a'=2,'b'=4] {'a'}, dimensions={0}, use_global_device_ids=true": [
        ("all-gather", ("a",), "float32", 64),
        ("all-gather", ("a",), "bfloat16", 32),
    ],
    "ROOT %pbroadcast.5 = f32[4,4]{1,0} collective-broadcast(%p), channel_id=1, "
    "replica_groups={{3,0,1,2},{7,4,5,6}}, has_dynamic_root=false": [
        ("collective-broadcast", ("b",), "float32", 64)
    ],
    "ROOT %ragged = f32[4,4]{1,0:S(7)} ragged-all-to-all(%p, %p, %q, %q, %q, /*index=5*/%q), "
    "channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}": [
        ("ragged-all-to-all", ("a",), "float32", 32)
    ],
    # ... asynchronous on 0.10.2, and in loops on both, with two shapes of result
    "%s = f32[4,4]{1,0} all-reduce-start(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, "
    "use_global_device_ids=true, to_apply=%region_0.0\n"
    "  ROOT %d = f32[4,4]{1,0} all-reduce-done(%s)": [("all-reduce", ("b",), "float32", 96)],
    "%s = ((f32[4,4]{1,0}), f32[4,4]{1,0}) all-reduce-start(%p), channel_id=1, replica_groups="
    "mesh['a'=2,'b'=4] {'b'}, use_global_device_ids=true, to_apply=%region_0.0, "
    "output_to_operand_aliasing={{1}: (0, {})}\n  ROOT %d = f32[4,4]{1,0} all-reduce-done(%s)": [
        ("all-reduce", ("b",), "float32", 96)
    ],
    "%s = (f32[4,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%p), channel_id=1, replica_groups={{0,4},"
    "{1,5},{2,6},{3,7}}, dimensions={0}, use_global_device_ids=true\n"
    "  ROOT %d = f32[8,4]{1,0} all-gather-done(%s)": [("all-gather", ("a",), "float32", 64)],
    "%s = ((f32[4,4]{1,0}, f32[4,4]{1,0}), (f32[2,4]{1,0}, f32[2,4]{1,0})) reduce-scatter-start(%p,"
    " %p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, "
    "dimensions={0}, to_apply=%region_0.0\n"
    "  ROOT %d = (f32[2,4]{1,0}, f32[2,4]{1,0}) reduce-scatter-done(%s)": [
        ("reduce-scatter", ("a",), "float32", 64)
    ],
    "%s = (f32[4,4]{1,0}, f32[4,4]{1,0}) collective-permute-start(%p), channel_id=1, "
    "source_target_pairs={{0,4},{4,0},{1,5},{5,1},{2,6},{6,2},{3,7},{7,3}}\n"
    "  ROOT %d = f32[4,4]{1,0} collective-permute-done(%s)": [
        ("collective-permute", ("a",), "float32", 64)
    ],
    "%t = token[] after-all()\n  %r = (f32[4,4]{1,0}, u32[], token[]) recv(%t), channel_id=1\n"
    "  ROOT %s = (f32[4,4]{1,0}, u32[], token[]) send(%p, %t), channel_id=1, frontend_attributes="
    '{_xla_gpu_collective_stream="p2p",_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,3}}}': [
        ("collective-permute", ("b",), "float32", 64)
    ],
    # written out by hand
    "ROOT %r = f32[4,4]{1,0:T(4,128)} all-reduce(f32[4,4]{1,0:T(4,128)} %p), replica_groups={}, "
    "to_apply=%region_0.0": [("all-reduce", ("a", "b"), "float32", 112)],
    "ROOT %r = f32[4,4]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0}}, "
    "to_apply=%region_0.0": [("all-reduce", ("a", "b"), "float32", 112)],
    # nothing leaves a device
    "ROOT %r = f32[4,4]{1,0} all-reduce(%p), channel_id=1, replica_groups=[8,1]<=[8], "
    "use_global_device_ids=true, to_apply=%region_0.0": [],
    "ROOT %r = f32[4,4]{1,0} collective-permute(%p), channel_id=1, source_target_pairs={{0,0}}": [],
    "ROOT %r = f32[4,4]{1,0} collective-permute(%p), channel_id=1, source_target_pairs={}": [],
    "%t = token[] after-all()\n  ROOT %s = (f32[4,4]{1,0}, u32[], token[]) send(%p, %t), "
    "channel_id=1, is_host_transfer=true": [],
    'ROOT %r = f32[4,4]{1,0} custom-call(%p), custom_call_target="all-reduce(x)"': [],
}


@pytest.mark.parametrize(("lines", "expected"), INSTRUCTIONS.items())
def test_kind_axes_dtype_and_bytes_of_every_printed_instruction(lines, expected):
    found = find_collectives(parse_module(module(lines)), MESH)
    assert [(row.kind, row.axes, row.dtype, row.nbytes) for row in found] == expected


@pytest.mark.parametrize(
    ("hlo", "name", "nbytes"),
    [
        ("pred[8]", "bool", 8),
        ("s4[8]{0:E(4)}", "int4", 4),
        ("f8e4m3fn[3]", "float8_e4m3fn", 3),
        ("c64[2,<=3]", "complex64", 48),
        ("u16[0]", "uint16", 0),
        ("token[]", "token", 0),
    ],
)
def test_element_types(hlo, name, nbytes):
    text = module(f"ROOT %r = {hlo} custom-call(%p)")
    parsed = parse_module(text)
    (array,) = parsed.computations[parsed.entry].instructions["r"].arrays
    assert (array.dtype, array.nbytes) == (name, nbytes)


WHILE = """HloModule jit_f, num_partitions=8

FileNames
1 "models/gpt.py"

FunctionNames
1 "block"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=88 end_line=88 column=4 end_column=9}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
19 {{file_location_id=1 parent_frame_id=1}}


%wrapped_add_computation (param_0: s32[], param_1: s32[]) -> s32[] {{
  %param_0 = s32[] parameter(0)
  %param_1 = s32[] parameter(1)
  ROOT %add.9 = s32[] add(%param_0, %param_1)
}}

%wrapped_compare_computation (param_0.3: s32[], param_1.2: s32[]) -> pred[] {{
  %param_0.3 = s32[] parameter(0)
  %param_1.2 = s32[] parameter(1)
  ROOT %lt.6 = pred[] compare(%param_0.3, %param_1.2), direction={direction}
}}

%body (param: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {{
  %param = (s32[], f32[4,16]{{1,0}}) parameter(0)
  %constant.3 = s32[] constant({step})
  %get-tuple-element.30 = f32[4,16]{{1,0}} get-tuple-element(%param), index=1
  %get-tuple-element.29 = s32[] get-tuple-element(%param), index=0
  %add.1 = s32[] fusion(%get-tuple-element.29, %constant.3), kind=kLoop, \
calls=%wrapped_add_computation
  %psum.6 = f32[4,16]{{1,0}} all-reduce(%get-tuple-element.30), channel_id=1, \
replica_groups=mesh['a'=2,'b'=4] {{'b'}}, use_global_device_ids=true, to_apply=%region, \
metadata={{op_name="jit(f)/while/body/psum" stack_frame_id=19}}
  ROOT %tuple.13 = (s32[], f32[4,16]{{1,0}}) tuple(%add.1, %psum.6)
}}

%condition (param.1: (s32[], f32[4,16])) -> pred[] {{
  %param.1 = (s32[], f32[4,16]{{1,0}}) parameter(0)
  %constant.5 = s32[] constant({limit})
  %get-tuple-element.20 = s32[] get-tuple-element(%param.1), index=0
  ROOT %lt = pred[] fusion(%get-tuple-element.20, %constant.5), kind=kLoop, \
calls=%wrapped_compare_computation
}}

ENTRY %main (x: f32[4,16]) -> f32[4,16] {{
  %x = f32[4,16]{{1,0}} parameter(0)
  %constant.9 = s32[] constant({init})
  %copy.1 = s32[] copy(%constant.9)
  %tuple.14 = (s32[], f32[4,16]{{1,0}}) tuple(%copy.1, %x)
  %while.1 = (s32[], f32[4,16]{{1,0}}) while(%tuple.14), condition=%condition, body=%body{known}
  ROOT %get-tuple-element.2 = f32[4,16]{{1,0}} get-tuple-element(%while.1), index=1
}}
"""
KNOWN = ', backend_config={"known_init_step":{"init":"0","step":"1"},"known_trip_count":{"n":"5"}}'


def loop(*, init="0", step="1", limit="5", direction="LT", known=""):
    return parse_module(
        WHILE.format(init=init, step=step, limit=limit, direction=direction, known=known)
    )


@pytest.mark.parametrize(
    ("parts", "trips"),
    [
        ({"known": KNOWN, "limit": "99"}, 5),
        ({}, 5),
        ({"init": "3", "limit": "10"}, 7),
        ({"step": "2", "limit": "7"}, 4),
        ({"direction": "LE"}, 6),
        ({"init": "9"}, 0),
        ({"direction": "NE"}, None),
        ({"step": "-1"}, None),
    ],
)
def test_trip_counts_as_noted_or_from_the_constants(parts, trips):
    parsed = loop(**parts)
    main = parsed.computations["main"]
    assert trip_count(parsed, main, main.instructions["while.1"]) == trips


def test_an_unknown_trip_count_counts_once_and_says_so():
    (row,) = find_collectives(loop(direction="NE"), MESH)
    assert (row.count, row.count_known) == (1, False)
    assert find_collectives(loop(init="9"), MESH) == ()


def test_the_condition_runs_once_more_than_the_body():
    text = WHILE.format(init="0", step="1", limit="5", direction="LT", known=KNOWN).replace(
        "  %constant.5 =",
        "  %x = f32[4,16]{1,0} get-tuple-element(%param.1), index=1\n"
        "  %pmax = f32[4,16]{1,0} all-reduce(%x), replica_groups=[4,2]<=[2,4]T(1,0), "
        "to_apply=%region\n  %constant.5 =",
    )
    rows = find_collectives(parse_module(text), MESH)
    assert {(row.axes, row.count) for row in rows} == {(("a",), 6), (("b",), 5)}


@pytest.mark.parametrize(("groups", "found"), [("{{0,1}}", ALL), ("{{0},{1}}", ROWS), ("{}", ALL)])
def test_groups_of_replicas_hold_all_their_partitions(groups, found):
    line = (
        f"ROOT %r = f32[4,4]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, "
        "to_apply=%region_0.0"
    )
    text = module(line).replace("num_partitions=8", "replica_count=2, num_partitions=4")
    (row,) = find_collectives(parse_module(text))
    assert (row.groups, row.axes) == (found, None)


def test_name_stack_and_source_come_from_the_metadata():
    (row,) = find_collectives(loop(known=KNOWN), MESH)
    assert (row.op_name, row.source) == ("jit(f)/while/body/psum", "models/gpt.py:88")
    assert (row.nbytes, row.count, row.instruction) == (384, 5, "psum.6")
    older = 'metadata={op_type="psum" op_name="jit(f)/psum" source_file="/u/f.py" source_line=7}'
    line = f"ROOT %r = f32[4,4]{{1,0}} all-reduce(%p), replica_groups={{}}, to_apply=%add, {older}"
    (row,) = find_collectives(parse_module(module(line)), MESH)
    assert (row.op_name, row.source) == ("jit(f)/psum", "/u/f.py:7")


def test_calls_and_async_wrappers_are_entered_once():
    text = """HloModule m, num_partitions=8

%wrapped (p.1: f32[4,4]) -> f32[1,4] {
  %p.1 = f32[4,4]{1,0} parameter(0)
  ROOT %rs = f32[1,4]{1,0} reduce-scatter(%p.1), channel_id=1, replica_groups=[2,4]<=[8], \
use_global_device_ids=true, dimensions={0}, to_apply=%add
}

%callee (p.2: f32[4,4]) -> f32[1,4] {
  %p.2 = f32[4,4]{1,0} parameter(0)
  %start = ((f32[4,4]{1,0}), f32[1,4]{1,0}) async-start(%p.2), calls=%wrapped
  %update = ((f32[4,4]{1,0}), f32[1,4]{1,0}) async-update(%start), calls=%wrapped
  ROOT %done = f32[1,4]{1,0} async-done(%update), calls=%wrapped
}, execution_thread="main"

ENTRY %main (p: f32[4,4]) -> f32[1,4] {
  %p = f32[4,4]{1,0} parameter(0)
  %one = f32[1,4]{1,0} call(%p), to_apply=%callee
  %two = f32[1,4]{1,0} fusion(%p), kind=kCustom, calls=%callee
  ROOT %sum = f32[1,4]{1,0} add(%one, %two)
}
"""
    rows = find_collectives(parse_module(text), MESH)
    assert [(row.kind, row.nbytes, row.count) for row in rows] == [("reduce-scatter", 48, 1)] * 2


@pytest.mark.parametrize(
    "text", ["", "module @jit_f attributes {mhlo.num_partitions = 8 : i32} {\n}"]
)
def test_text_that_is_no_compiled_program_is_an_error(text):
    with pytest.raises(SbpError) as error:
        audit(text)
    assert str(error.value) == (
        "this text is not a compiled HLO module: it has no ENTRY computation.\n"
        "  It is another text, or a part of one.\n"
        "Fix: pass the object that step.lower(...).compile() returns, or its as_text()"
    )
