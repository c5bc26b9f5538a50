"""A plan's program as a tape: the arrays that the lowered program makes and reads, in its order.

Comes in: an assignment and the program's block. Goes out: a `Tape` and its `Buffer`s.
"""

from collections.abc import Sequence

import jax

from sbp.algebra import Words, local_type
from sbp.boxing import Step
from sbp.graph import is_fusible, reads_fused
from sbp.plan.assignment import Assignment
from sbp.plan.buffers import Buffer, Event, Scope, Tape
from sbp.plan.kernels import NOTHING, Extra, extra, is_library_call, is_relaid
from sbp.plan.ordering import operand_words, order_block, overwritten
from sbp.plan.scheduling import Launch, Need
from sbp.program import Atom, Block, Equation, Value

EXPENSIVE = frozenset(
    ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "digamma",
     "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log1p", "logistic",
     "pow", "random_bits", "rem", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "threefry2x32"]
)  # fmt: skip
"""What XLA does not compute again for a second reader (`HloInstruction::IsExpensive`)."""

PARTS_ARE_KEPT = jax.__version_info__ >= (0, 11)
"""Whether XLA's CPU backend keeps a part of packed arrays that two kernels read; older ones take it
out of the packed ones twice."""


def record(
    assignment: Assignment, block: Block, wanted: Sequence[Words], *, on_cpu: bool = False
) -> tuple[Tape, list[Buffer]]:
    """The program as a tape, and every buffer in the order of making.

    Args:
        assignment: The choices.
        block: The program.
        wanted: Words of its results.
        on_cpu: Whether XLA's CPU backend compiles it, which reduces what lies in memory only.
    """
    recorder = _Recorder(assignment, on_cpu)
    tape, scope = Tape(0), Scope()
    for value in block.inputs:
        words = assignment.written(value)
        buffer = recorder.buffer(tape, value, words)
        tape.held.append(buffer)
        scope.hold(value, words, buffer)
    recorder.run(tape, block, wanted, scope)
    return tape, recorder.buffers


class _Recorder:
    def __init__(self, assignment: Assignment, on_cpu: bool) -> None:
        self.assignment = assignment
        self.on_cpu = on_cpu
        self.reads_fused = is_fusible if on_cpu else reads_fused
        self.sizes = assignment.boxing.graph.mesh.sizes
        self.buffers: list[Buffer] = []
        self.by_library: set[Buffer] = set()
        self.num_tapes = 1

    def add(self, buffer: Buffer, tape: Tape) -> Buffer:
        """Notes who reads what a buffer is made of."""
        buffer.made = len(tape.events)
        for source in buffer.inputs:
            source.readers.append(buffer)
        self.buffers.append(buffer)
        return buffer

    def buffer(self, tape: Tape, value: Value, words: Words) -> Buffer:
        """A buffer that is in memory whatever reads it."""
        nbytes = local_type(value.type, words, self.sizes).nbytes
        return self.add(Buffer(nbytes, tape.number, value, words), tape)

    def part(self, tape: Tape, value: Value, words: Words, *inputs: Buffer) -> Buffer:
        """A slice or a mask of something, or one of several arrays that are packed."""
        nbytes = local_type(value.type, words, self.sizes).nbytes
        new = Buffer(nbytes, tape.number, value, words, fused=True, inputs=inputs)
        new.again, new.lazy = True, not self.on_cpu
        return self.add(new, tape)

    def run(self, tape: Tape, block: Block, wanted: Sequence[Words], scope: Scope) -> None:
        """Records a block whose inputs are at hand."""
        halfway: dict[Need, tuple[Buffer, tuple[Step, ...]]] = {}
        turns = order_block(self.assignment, block, wanted, lambda *at: scope.find(*at) is not None)
        for turn in turns:
            if isinstance(turn, Launch):
                self.launch(tape, turn.needs, scope, halfway)
            else:
                self.run_equation(tape, block, turn, scope)
        pairs = zip(block.outputs, wanted, strict=True)
        tape.ends = tuple(self.read(tape, scope, atom, words) for atom, words in pairs)

    def read(self, tape: Tape, scope: Scope, atom: Atom, words: Words) -> Buffer:
        """An operand; what is left of its boxing sends nothing."""
        if not isinstance(atom, Value):
            return self.add(Buffer(0, tape.number, fused=True, again=True), tape)
        at = scope.find(atom, words)
        if at is not None:
            return at
        for src, dst in self.assignment.route(atom, words):
            if scope.find(atom, dst) is None:
                source = scope.find(atom, src)
                assert source is not None, (atom, src)
                steps = self.assignment.path(atom, src, dst)
                is_renamed = all(step.kind == "relabel" for step in steps)
                new = source if is_renamed else self.part(tape, atom, dst, source)
                scope.hold(atom, dst, new)
        at = scope.find(atom, words)
        assert at is not None, (atom, words)
        return at

    def launch(
        self, tape: Tape, needs: Sequence[Need], scope: Scope,
        halfway: dict[Need, tuple[Buffer, tuple[Step, ...]]],
    ) -> None:  # fmt: skip
        """Records a collective: of one array, or of several that are packed on both sides."""
        first = needs[0].equation
        where = first.source if first else ""
        loads: list[tuple[Buffer, tuple[Step, ...]]] = []
        for need in needs:
            start = halfway.pop(need, None)
            if start is None:
                at = scope.find(need.value, need.src)
                assert at is not None, need
                start = at, need.steps
            loads.append(self.step_locally(tape, need.value, *start))
        step = loads[0][1][0]
        packs = len(needs) > 1 and step.kind != "all-reduce"
        cuts, joins = (
            (False, False) if len(needs) > 1
            else is_relaid(step, needs[0].value.type, self.sizes, on_cpu=self.on_cpu)
        )  # fmt: skip
        ends: list[Buffer] = []
        for need, (_, steps) in zip(needs, loads, strict=True):
            ends.append(Buffer(0, tape.number, need.value, steps[0].dst))
            ends[-1].nbytes = local_type(need.value.type, steps[0].dst, self.sizes).nbytes
        sources = tuple(source for source, _ in loads)
        if packs:
            sent = self.add(
                Buffer(sum(x.nbytes for x in sources), tape.number, inputs=sources), tape
            )
            tape.events.append(Event(where, reads=sources, writes=(sent,)))
            sources = (sent,)
        elif cuts:
            sources = (self.copy(tape, where, *sources),)
        outputs = tuple(ends)
        if packs or joins:
            outputs = (Buffer(sum(x.nbytes for x in ends), tape.number),)
        self.force(sources)
        for output in outputs:
            self.add(output, tape)
        tape.events.append(Event(where, reads=sources, writes=outputs))
        if packs or joins:
            ends = [
                self.part(tape, need.value, steps[0].dst, outputs[0])
                for need, (_, steps) in zip(needs, loads, strict=True)
            ]
            if packs and step.kind == "all-gather":
                # XLA's CPU backend takes them apart when they are read, newer ones once for all
                # readers; for others the lowering does at once.
                for end in ends:
                    end.forced, end.lazy, end.made = not self.on_cpu, False, len(tape.events)
                    end.again = not PARTS_ARE_KEPT
                tape.events.append(Event(where, reads=outputs, writes=tuple(ends)))
        for need, end, (_, steps) in zip(needs, ends, loads, strict=True):
            left = steps[1:]
            if all(step.is_local for step in left):
                scope.hold(need.value, need.dst, self.step_locally(tape, need.value, end, left)[0])
            else:
                halfway[need] = end, left

    def step_locally(
        self, tape: Tape, value: Value, at: Buffer, steps: tuple[Step, ...]
    ) -> tuple[Buffer, tuple[Step, ...]]:
        """The local steps in front."""
        while steps and steps[0].is_local:
            if steps[0].kind != "relabel":
                at = self.part(tape, value, steps[0].dst, at)
            steps = steps[1:]
        return at, steps

    def force(self, buffers: Sequence[Buffer]) -> None:
        """What is read where it lies."""
        for buffer in buffers:
            buffer.forced = True

    def run_equation(self, tape: Tape, block: Block, equation: Equation, scope: Scope) -> None:
        """Records an equation."""
        operands = operand_words(self.assignment, equation)
        args = tuple(self.read(tape, scope, atom, words) for atom, words in operands)
        match equation.name:
            case "barrier":
                self.force(args)
                for value, buffer in zip(equation.outputs, args, strict=True):
                    scope.hold(value, self.assignment.written(value), buffer)
                tape.events.append(Event(equation.source, equation, args))
            case "scan":
                self.run_scan(tape, block, equation, args, scope)
            case "while":
                self.run_while(tape, equation, args, scope)
            case "cond":
                self.run_cond(tape, equation, args, scope)
            case _:
                self.run_call(tape, equation, args, scope)

    def run_call(
        self, tape: Tape, equation: Equation, args: tuple[Buffer, ...], scope: Scope
    ) -> None:
        fused = is_fusible(equation) and not equation.has_effects
        more = NOTHING if fused else self.extra(equation)
        args = tuple(
            self.copy(tape, equation.source, buffer) if place in more.copied else buffer
            for place, buffer in enumerate(args)
        )
        taken = dict.fromkeys(args)
        inputs = tuple(taken) if self.reads_fused(equation) and not equation.has_effects else ()
        if not inputs:
            self.force(args)
        if more.raw_nbytes:
            # What the kernel writes is read by one that can be fused with those after it.
            raw = self.add(Buffer(more.raw_nbytes, tape.number), tape)
            tape.events.append(Event(equation.source, equation, tuple(taken), (raw,)))
            fused, inputs, taken = True, (raw,), {raw: None}
        outputs: list[Buffer] = []
        for value in equation.outputs:
            words = self.assignment.written(value)
            nbytes = local_type(value.type, words, self.sizes).nbytes
            again = equation.name not in EXPENSIVE and sum(x.nbytes for x in taken) <= nbytes
            outputs.append(self.add(Buffer(
                nbytes, tape.number, value, words, fused=fused, inputs=inputs, again=again,
                spread=self.spreads(equation, inputs),
            ), tape))  # fmt: skip
            scope.hold(value, words, outputs[-1])
        if self.on_cpu and is_library_call(equation):
            self.by_library.update(outputs)
        tape.events.append(Event(equation.source, equation, tuple(taken), tuple(outputs)))

    def spreads(self, equation: Equation, inputs: tuple[Buffer, ...]) -> bool:
        """Whether an equation broadcasts what a library computed, or a part of a kernel of that."""
        behind = {x for source in inputs for x in (source, *source.inputs)}
        return equation.name == "broadcast_in_dim" and not behind.isdisjoint(self.by_library)

    def extra(self, equation: Equation) -> Extra:
        """What a kernel holds beside its operands and its result."""
        if not equation.outputs:
            return NOTHING
        operands = operand_words(self.assignment, equation)
        inputs = [local_type(atom.type, words, self.sizes) for atom, words in operands]
        value = equation.outputs[0]
        output = local_type(value.type, self.assignment.written(value), self.sizes)
        return extra(equation, inputs, output, on_cpu=self.on_cpu)

    def copy(self, tape: Tape, where: str, source: Buffer) -> Buffer:
        """An operand in another layout; what it is made of can be computed on the way."""
        new = Buffer(source.nbytes, tape.number, fused=True, inputs=(source,), forced=True)
        self.add(new, tape)
        if self.on_cpu:
            # Breadth first: XLA's CPU backend copies as soon as there is something to copy.
            new.made = _soonest(source, tape)
        if new.made == len(tape.events):
            tape.events.append(Event(where, None, (source,), (new,)))
        return new

    def run_scan(
        self, tape: Tape, block: Block, equation: Equation, args: tuple[Buffer, ...], scope: Scope
    ) -> None:
        scan, body = equation.params["scan"], equation.bodies[0]
        start, stop = scan.num_consts, scan.num_consts + scan.num_carry
        inner, inside = self.open(), Scope(scope)
        self.hold_all(inside, body.inputs[:start], args[:start])
        self.carry_in(inner, inside, body.inputs[start:stop])
        over = overwritten(self.assignment, block, equation)
        taken = {place: args[stop + place] for place in over.values()}
        carried = {
            place: self.add(Buffer(stack.nbytes, inner.number, stack.value, stack.words), inner)
            for place, stack in taken.items()
        }
        inner.held += carried.values()
        for place, value in enumerate(body.inputs[stop:]):
            words = self.assignment.written(value)
            stack = carried[place] if place in carried else args[stop + place]
            inside.hold(value, words, self.part(inner, value, words, stack))
        count = len(equation.outputs) - scan.num_carry
        carries = [self.assignment.label(equation, "carry", k) for k in range(scan.num_carry)]
        stacks = [self.assignment.label(equation, "stack", k) for k in range(count)]
        self.run(inner, body, [*carries, *stacks], inside)
        results = self.make(tape, equation.outputs, scope)
        slices = inner.ends[scan.num_carry :]
        wholes = results[scan.num_carry :]
        inner.ends = (*inner.ends[: scan.num_carry], *carried.values())
        self.force(inner.ends)
        late = tuple(slices[place] for place in over)
        if self.on_cpu:
            self.force(late)
        # They are carried to the next turn, or wait until what they are written over is read.
        inner.ends += late
        inner.stacked = tuple(zip(slices, wholes, strict=True))
        for one, whole in inner.stacked:
            one.readers.append(whole)
        moved = (*args[start:stop], *taken.values())
        writes = (*results[: scan.num_carry], *(wholes[place] for place in over))
        tape.events.append(Event(equation.source, equation, args, writes, moved, (inner,)))

    def run_while(
        self, tape: Tape, equation: Equation, args: tuple[Buffer, ...], scope: Scope
    ) -> None:
        condition, body = equation.bodies
        num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        start = num_cond + num_body
        carries = [
            self.assignment.label(equation, "carry", k) for k in range(len(equation.outputs))
        ]
        tapes: list[Tape] = []
        for block, consts, wanted in (
            (condition, args[:num_cond], [self.assignment.whole]),
            (body, args[num_cond:start], carries),
        ):
            inner, inside = self.open(), Scope(scope)
            self.hold_all(inside, block.inputs[: len(consts)], consts)
            self.carry_in(inner, inside, block.inputs[len(consts) :])
            self.run(inner, block, wanted, inside)
            self.force(inner.ends)
            tapes.append(inner)
        self.force(args[start:])
        results = self.make(tape, equation.outputs, scope)
        tape.events.append(Event(
            equation.source, equation, args, results, args[start:], tuple(tapes)
        ))  # fmt: skip

    def run_cond(
        self, tape: Tape, equation: Equation, args: tuple[Buffer, ...], scope: Scope
    ) -> None:
        joins = [self.assignment.label(equation, "join", k) for k in range(len(equation.outputs))]
        tapes: list[Tape] = []
        self.force(args)
        for block in equation.bodies:
            inner, inside = self.open(), Scope(scope)
            self.hold_all(inside, block.inputs, args[1:])
            self.run(inner, block, joins, inside)
            self.force(inner.ends)
            tapes.append(inner)
        results = self.make(tape, equation.outputs, scope)
        tape.events.append(Event(equation.source, equation, args, results, bodies=tuple(tapes)))

    def open(self) -> Tape:
        """A tape for a body."""
        self.num_tapes += 1
        return Tape(self.num_tapes - 1)

    def hold_all(self, scope: Scope, values: Sequence[Value], buffers: Sequence[Buffer]) -> None:
        """What a body reads of the outside, as it is."""
        for value, buffer in zip(values, buffers, strict=True):
            scope.hold(value, self.assignment.written(value), buffer)

    def carry_in(self, tape: Tape, scope: Scope, values: Sequence[Value]) -> None:
        """What a loop hands to its next turn."""
        for value in values:
            words = self.assignment.written(value)
            tape.held.append(self.buffer(tape, value, words))
            scope.hold(value, words, tape.held[-1])

    def make(self, tape: Tape, values: Sequence[Value], scope: Scope) -> tuple[Buffer, ...]:
        """Results of a loop or branch."""
        made = tuple(self.buffer(tape, value, self.assignment.written(value)) for value in values)
        for value, buffer in zip(values, made, strict=True):
            scope.hold(value, buffer.words, buffer)
        return made


def _soonest(buffer: Buffer, tape: Tape) -> int:
    """The event of a tape with which all is there that a buffer is computed from."""
    waiting, seen, soonest = [buffer], {buffer}, 0
    while waiting:
        buffer = waiting.pop()
        if buffer.tape == tape.number and buffer not in tape.held:
            if not buffer.fused:
                soonest = max(soonest, buffer.made)
            waiting += [x for x in buffer.inputs if buffer.fused and x not in seen]
            seen.update(buffer.inputs)
    return soonest
