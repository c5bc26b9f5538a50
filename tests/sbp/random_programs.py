"""Random small programs as values: what to compute, on which mesh, priced how, with which pins."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.sharding import AbstractMesh

import sbp
from scripts.parity_cases import WITHOUT_LATENCY

DIMS = (8, 16, 3)  # every mesh divides 8 and 16, none divides 3
SCALES = (1, 256)  # latency decides, or bytes and operations do
MOST_RANK = 3
SIZES = ((8,), (4,), (2, 4), (4, 2), (2, 2), (2, 2, 2))
AXES = ("a", "b", "c", "d", "e")


def contract(x, y):
    """Sums over the first dims of equal size."""
    for i, size in enumerate(x.shape):
        if size in y.shape and x.ndim + y.ndim - 2 <= MOST_RANK:
            return jnp.tensordot(x, y, axes=(i, y.shape.index(size)))
    return jnp.sin(x)


def multiply(x, y):
    return x * y if x.shape == y.shape else x * jnp.sum(y)


def add(x, y):
    return x + y if x.shape == y.shape else jnp.maximum(x, 0)


def total(x, y):
    return jnp.sum(x, axis=-1) if x.ndim else x + 1


def highest(x, y):
    return jnp.max(x, axis=0) if x.ndim else x * 2


def turn(x, y):
    return x.T


def flatten(x, y):
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) if x.ndim > 1 else -x


def divide(x, y):
    """Makes two dims of the first."""
    if 0 < x.ndim < MOST_RANK and x.shape[0] % 4 == 0:
        return x.reshape(4, x.shape[0] // 4, *x.shape[1:])
    return jnp.tanh(x)


def loop(x, y):
    """A carry x, and y is read row by row; where it fits, y is also a constant of the loop."""

    def body(carry, row):
        return (carry @ y if fits else carry * 2) + jnp.sum(row), jnp.sum(carry)

    fits = x.ndim == 2 and y.shape == (x.shape[1], x.shape[1])
    return jax.lax.scan(body, x, y)[0] if y.ndim else x


def branch(x, y):
    return jax.lax.cond(jnp.sum(y) > 0, lambda x: contract(x, y), lambda x: contract(x, y) * 2, x)


OPERATIONS: tuple[Callable[..., Any], ...] = (
    contract, contract, multiply, add, total, highest, turn, flatten, divide, loop, branch,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """What to plan.

    Attributes:
        shapes: Shapes of the arguments, before they are scaled.
        steps: Number of an operation, and of its operands counted back from the latest value.
        is_update: Whether the program is a step of gradient descent on its first argument.
        sizes: The mesh.
        objective: What is least.
        hardware: The machine.
        scale: Factor on the sizes of dims.
    """

    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, int, int], ...]
    is_update: bool
    sizes: tuple[int, ...]
    objective: str
    hardware: Any
    scale: int

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh axes."""
        return AXES[: len(self.sizes)]

    @property
    def arguments(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Types of the arguments."""
        return {
            f"x{k}": jax.ShapeDtypeStruct(tuple(self.scale * dim for dim in shape), jnp.float32)
            for k, shape in enumerate(self.shapes)
        }

    def forward(self, **values):
        """Every value that no operation reads, by name."""
        made, read = list(values.values()), set()
        for operation, first, second in self.steps:
            operands = [len(made) - 1 - back % len(made) for back in (first, second)]
            read.update(operands)
            made.append(OPERATIONS[operation](*(made[k] for k in operands)))
        return {f"y{k}": value for k, value in enumerate(made) if k not in read}

    def program(self, **values):
        """The function to plan."""
        if not self.is_update:
            return self.forward(**values)

        def loss(x0):
            return sum(jnp.sum(y * y) for y in self.forward(**{**values, "x0": x0}).values())

        return {"x0": values["x0"] - jax.grad(loss)(values["x0"])}

    @functools.cached_property
    def results(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Types of the results."""
        return jax.eval_shape(self.program, **self.arguments)

    def plan(
        self, search: str = "optimal", *, in_sbp: Any = None, out_sbp: Any = None,
        memory_limit: int | None = None,
    ) -> sbp.Plan:  # fmt: skip
        """Plans it; a step of gradient descent gives the weights back as it gets them."""
        step = sbp.parallelize(
            self.program, mesh=AbstractMesh(self.sizes, self.axes), objective=self.objective,
            hardware=self.hardware, search=search, in_sbp=in_sbp or None, out_sbp=out_sbp or None,
            tie={"x0": "x0"} if self.is_update else None, memory_limit=memory_limit,
        )  # fmt: skip
        return step.plan(**self.arguments)


@st.composite
def cases(draw, most_steps: int = 6, sizes: tuple[tuple[int, ...], ...] = SIZES) -> Case:
    """Chains and graphs of operations; late values are the likelier operands."""
    dim = st.sampled_from(DIMS)
    shape = st.one_of(st.tuples(dim, dim), st.tuples(dim))
    operand = st.one_of(st.just(0), st.integers(0, 5))
    step = st.tuples(st.integers(0, len(OPERATIONS) - 1), operand, operand)
    return Case(
        tuple(draw(st.lists(shape, min_size=1, max_size=3))),
        tuple(draw(st.lists(step, min_size=2, max_size=most_steps))),
        draw(st.booleans()),
        draw(st.sampled_from(sizes)),
        draw(st.sampled_from(["time", "bytes", "wire"])),
        draw(st.sampled_from(["h100", WITHOUT_LATENCY])),
        draw(st.sampled_from(SCALES)),
    )


@st.composite
def words(draw, case: Case, shape: tuple[int, ...]) -> str:
    """Words of one array that its shape allows, for some of the axes."""
    blocks = [1] * len(shape)
    asked = []
    for axis, size in zip(case.axes, case.sizes, strict=True):
        fitting = [d for d, n in enumerate(shape) if n % (blocks[d] * size) == 0]
        word = draw(st.sampled_from(["", "B", *(f"S({d})" for d in fitting)]))
        if word.startswith("S"):
            blocks[int(word[2])] *= size
        asked += [f"{axis}: {word}"] if word else []
    return ", ".join(asked)


@st.composite
def pins(draw, case: Case) -> tuple[dict[str, str], dict[str, str]]:
    """Words of some arguments and results; of tied ones, only the argument's."""
    ends = case.arguments, {} if case.is_update else case.results
    asked = [{path: draw(words(case, end.shape)) for path, end in side.items()} for side in ends]
    arguments, results = ({path: text for path, text in side.items() if text} for side in asked)
    return arguments, results
