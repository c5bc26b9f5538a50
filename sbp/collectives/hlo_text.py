"""The text of a compiled program as instructions and loop counts.

Comes in: what `compiled.as_text()` prints, on any backend and either end of the supported jaxlib
range. Goes out: a frozen `HloModule` whose instructions can be asked for their operands and
attributes, and the trip counts of its loops. Text is parsed because it is the one form that every
backend and every version offers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from sbp.errors import SbpError

_INSTRUCTION = re.compile(r"\s*(ROOT\s+)?%?([\w.\-]+) = (.*?)\s([a-z][a-z0-9\-]*)\((.*)$")
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_DTYPE = re.compile(r"(bf|[sufc])(\d+)(\w*)")
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')
_NUMPY_KIND = {"bf": "bfloat", "s": "int", "u": "uint", "f": "float", "c": "complex"}

_FRAME_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass(frozen=True, slots=True)
class HloArray:
    """One array of a result or operand.

    Attributes:
        dtype: numpy's name of the element type; the HLO name where numpy has none (`token`).
        num_elements: Product of the dims; a bounded dynamic dim counts as its bound.
        nbytes: Size in bytes; elements below one byte are counted as packed.
    """

    dtype: str
    num_elements: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation: `name = result opcode(arguments), attributes`."""

    name: str
    opcode: str
    result: str
    rest: str

    @property
    def arrays(self) -> tuple[HloArray, ...]:
        """The arrays of the result, tuples flattened."""
        return tuple(_array(dtype, dims) for dtype, dims in _ARRAY.findall(self.result))

    @property
    def arguments(self) -> tuple[str, ...]:
        """What stands between the parentheses; operands without `%`, type and comments."""
        texts = _split(self.rest)[0]
        return tuple(re.sub(r"/\*.*?\*/", "", text).split()[-1].lstrip("%") for text in texts)

    @property
    def attributes(self) -> dict[str, str]:
        """What follows the operands, by key; values as printed."""
        pairs = (text.partition("=") for text in _split(self.rest)[1])
        return {key.strip(): value.strip() for key, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Computation:
    """A named list of instructions; `root` is the name of the one whose value it returns."""

    name: str
    instructions: Mapping[str, Instruction]
    root: str


@dataclass(frozen=True, slots=True)
class HloModule:
    """A compiled program.

    Attributes:
        num_devices: Partitions times replicas, from the header.
        num_partitions: Programs that differ only in their partition id.
        computations: Every computation, by name.
        entry: The name of the computation that runs.
        frames: Stack frame id -> "file:line" of its innermost frame.
    """

    num_devices: int
    num_partitions: int
    computations: Mapping[str, Computation]
    entry: str
    frames: Mapping[str, str]


def parse_module(text: str) -> HloModule:
    """Reads the text of one HLO module.

    Raises:
        SbpError: `text` is not the text of a compiled program (StableHLO, say).
    """
    computations: dict[str, Computation] = {}
    entry = name = root = ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        if found := _INSTRUCTION.match(line):
            instruction = Instruction(*found.group(2, 4, 3, 5))
            instructions[instruction.name] = instruction
            root = instruction.name if found.group(1) else root
        elif found := _COMPUTATION.match(line):
            name, instructions, root = found.group(2), {}, ""
            entry = name if found.group(1) else entry
        elif line.lstrip().startswith("}") and name:
            root = root or next(reversed(instructions), "")
            computations[name] = Computation(name, instructions, root)
            name = ""
    if entry not in computations:
        raise SbpError(
            "this text is not a compiled HLO module: it has no ENTRY computation",
            why="It is another text, or a part of one.",
            how="pass the object that step.lower(...).compile() returns, or its as_text()",
        )
    header = re.search(r"^\s*HloModule .*$", text, re.MULTILINE)
    counts = dict(
        re.findall(r"\b(num_partitions|replica_count)=(\d+)", header.group() if header else "")
    )
    num_partitions = int(counts.get("num_partitions", 1))
    num_devices = num_partitions * int(counts.get("replica_count", 1))
    return HloModule(num_devices, num_partitions, computations, entry, _frames(text))


def called_computations(instruction: Instruction, *keys: str) -> tuple[str, ...]:
    """Names of the computations that stand under the given attributes of an instruction."""
    attributes = instruction.attributes
    names = (re.findall(r"[\w.\-]+", attributes.get(key, "")) for key in keys)
    return tuple(name for found in names for name in found)


def source_line(module: HloModule, instruction: Instruction) -> tuple[str, str]:
    """JAX's name stack and "file:line" of an instruction; empty where the text has none."""
    metadata = instruction.attributes.get("metadata", "")
    fields = dict(re.findall(r'(\w+)="?((?:(?<=")[^"]*)|[^\s"{}]+)', metadata))
    source = module.frames.get(fields.get("stack_frame_id", ""), "")
    if "source_file" in fields:
        source = f"{fields['source_file']}:{fields.get('source_line', '?')}"
    return fields.get("op_name", ""), source


def trip_count(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """How often the body of a while loop runs, or None if the text does not say.

    XLA writes `known_trip_count` where it knows. Otherwise the count follows from
    `init < limit` with a constant step, if all three are constants of the text.
    """
    if found := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest):
        return int(found.group(1))
    attributes = loop.attributes
    condition = module.computations[attributes["condition"].lstrip("%")]
    body = module.computations[attributes["body"].lstrip("%")]
    test = _comparison(module, condition)
    start = caller.instructions[loop.arguments[0]]
    update = body.instructions[body.root]
    if test is None or start.opcode != "tuple" or update.opcode != "tuple":
        return None
    index, limit = test
    init = _linear(module, caller, start.arguments[index], {})
    step = _linear(module, body, update.arguments[index], {})
    if init is None or init[0] is not None or step is None or step[0] != index or step[1] <= 0:
        return None
    return max(0, -((init[1] - limit) // step[1]))


def _array(dtype: str, dims: str) -> HloArray:
    size = prod(int(dim.strip().lstrip("<=")) for dim in dims.split(",") if dim.strip())
    if dtype == "pred":
        return HloArray("bool", size, size)
    if not (found := _DTYPE.fullmatch(dtype)):
        return HloArray(dtype, size, 0)
    kind, bits, variant = found.groups()
    name = f"{_NUMPY_KIND[kind]}{bits}" + (f"_{variant}" if variant else "")
    return HloArray(name, size, size * int(bits) / 8)


def _split(rest: str) -> tuple[list[str], list[str]]:
    """Splits `operands), attribute, attribute` at its top-level commas."""
    operands: list[str] = []
    attributes: list[str] = []
    parts, depth, start = operands, 0, 0
    for token in _NESTING.finditer(rest):
        mark = token.group()
        if depth == 0 and mark in (",", ")"):
            parts.append(rest[start : token.start()])
            start = token.end()
            parts = attributes if mark == ")" else parts
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
    parts.append(rest[start:])
    return [text for text in operands if text.strip()], [text for text in attributes if "=" in text]


def _frames(text: str) -> dict[str, str]:
    """Reads the tables that newer jaxlibs print in front of the computations."""
    tables: dict[str, dict[str, str]] = {title: {} for title in _FRAME_TABLES}
    for title in _FRAME_TABLES:
        if found := re.search(rf"^{title}\n((?:\d+ .*\n)+)", text, re.MULTILINE):
            rows = (line.split(" ", 1) for line in found.group(1).splitlines())
            tables[title] = dict(row for row in rows if len(row) == 2)
    locations = {}
    for key, row in tables["FileLocations"].items():
        fields = dict(re.findall(r"(\w+)=(\d+)", row))
        file = tables["FileNames"].get(fields.get("file_name_id", ""), '""').strip('"')
        locations[key] = f"{file}:{fields.get('line', '?')}"
    frames = {}
    for key, row in tables["StackFrames"].items():
        fields = dict(re.findall(r"(\w+)=(\d+)", row))
        frames[key] = locations.get(fields.get("file_location_id", ""), "")
    return frames


# A value of a loop counter: (index in the loop's tuple or None for a constant, offset).
_Linear = tuple[int | None, int]


def _comparison(module: HloModule, condition: Computation) -> tuple[int, int] | None:
    """(index, limit) if the condition is `tuple[index] < limit` with a constant limit."""
    computation, bound = condition, {}
    test = computation.instructions[computation.root]
    if test.opcode == "fusion":
        computation, bound = _enter(module, computation, test, bound)
        test = computation.instructions[computation.root]
    direction = test.attributes.get("direction")
    if test.opcode != "compare" or direction not in ("LT", "LE"):
        return None
    left, right = (_linear(module, computation, name, bound) for name in test.arguments)
    if left is None or right is None or left[0] is None or right[0] is not None:
        return None
    return left[0], right[1] - left[1] + (direction == "LE")


def _linear(
    module: HloModule, computation: Computation, name: str, bound: Mapping[str, _Linear | None]
) -> _Linear | None:
    """Evaluates an integer that is a constant, or a loop-carried integer plus a constant."""
    instruction = computation.instructions[name]
    match instruction.opcode:
        case "constant":
            text = instruction.rest.partition(")")[0]
            return (None, int(text)) if re.fullmatch(r"-?\d+", text) else None
        case "parameter":
            return bound.get(instruction.rest.partition(")")[0])
        case "get-tuple-element":
            source = computation.instructions[instruction.arguments[0]]
            index = int(instruction.attributes["index"])
            return (index, 0) if source.opcode == "parameter" and not bound else None
        case "copy" | "bitcast" | "convert":
            return _linear(module, computation, instruction.arguments[0], bound)
        case "fusion":
            inner, bound = _enter(module, computation, instruction, bound)
            return _linear(module, inner, inner.root, bound)
        case "add":
            terms = [_linear(module, computation, term, bound) for term in instruction.arguments]
            if None in terms:
                return None
            (left, first), (right, second) = (term for term in terms if term is not None)
            both_carried = left is not None and right is not None
            return None if both_carried else (right if left is None else left, first + second)
    return None


def _enter(
    module: HloModule,
    computation: Computation,
    call: Instruction,
    bound: Mapping[str, _Linear | None],
) -> tuple[Computation, dict[str, _Linear | None]]:
    """The computation that a fusion calls, and what its numbered parameters stand for."""
    values = [_linear(module, computation, name, bound) for name in call.arguments]
    inner = module.computations[call.attributes["calls"].lstrip("%")]
    return inner, {str(place): value for place, value in enumerate(values)}
