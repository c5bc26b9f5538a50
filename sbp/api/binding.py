"""How the arguments of a call fit the user's function; what is wrong with them where they do not.

Comes in: a function and the arguments of a call. Goes out: the arguments by position, or an error
that names the argument.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from sbp.api.options import argument_names, function_name
from sbp.api.requests import path_of
from sbp.errors import SbpError


def struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weak type of an argument leaf, whatever holds it."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = jax.typeof(leaf)
    dtype = leaf.dtype
    if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(
        leaf.shape, dtype, weak_type=bool(getattr(leaf, "weak_type", False))
    )


def by_position(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a call by position, with defaults only between those that are given.

    Raises:
        SbpError: The function cannot be called so, or takes some of them by name only.
    """
    if not kwargs:
        return tuple(args)
    bound = check_call(fn, args, kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    by_name = [name for name in bound.kwargs if name in given]
    if by_name:
        name = function_name(fn)
        raise SbpError(
            f"{name} takes {', '.join(by_name)} by name only",
            why="The words of arguments are kept by position.",
            how="let the function take it by position too",
        )
    named = argument_names(fn, len(bound.args))
    last = max((k for k, name in enumerate(named) if name.split(".")[0] in given), default=-1)
    return bound.args[: last + 1]


def check_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Refuses arguments that the function cannot be called with."""
    signature, name = inspect.signature(fn), function_name(fn)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SbpError(
            f"{name} cannot be called so: {error}",
            why="A step takes the arguments of its function.",
            how=f"{name}{signature}",
        ) from None


def check_arguments(fn: Callable[..., Any], args: Sequence[Any], static: Sequence[int]) -> None:
    """Refuses an argument that is neither a tree of arrays nor a static value."""
    for k, (name, arg) in enumerate(zip(argument_names(fn, len(args)), args, strict=True)):
        if k not in static:

            def called(path: str, name: str = name) -> str:
                return f"argument {name}{'.' if path else ''}{path}"

            option = f"static_argnums={k}" if "." in name else f"static_argnames={name!r}"
            check_arrays(arg, called, f"{option}, if it is no array")
        elif not _is_hashable(arg):
            raise SbpError(
                f"static argument {name} is a {type(arg).__name__}, which cannot be hashed",
                why="A new value of a static argument plans and compiles anew, so values are "
                "compared by hash.",
                how="a tuple for a list, a frozen dataclass for a dict",
            )


def check_arrays(tree: Any, called: Callable[[str], str], how: str) -> None:
    """Refuses a tree with a leaf that is no array.

    Args:
        tree: Arguments or results.
        called: What a leaf is called, by its path.
        how: A remedy.
    """
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        try:
            struct_of(leaf)
        except (TypeError, OverflowError) as error:
            shown = type(leaf).__name__
            if hasattr(leaf, "dtype"):
                shown += f" of dtype {leaf.dtype}"
            too_large = f"\n{error}." if isinstance(error, OverflowError) else ""
            raise SbpError(
                f"{called(path_of(keys, ''))} is no array but {shown}",
                why=f"A step takes and returns trees of arrays and numbers.{too_large}",
                how=how,
            ) from None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
