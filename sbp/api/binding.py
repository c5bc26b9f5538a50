"""How the arguments of a call fit the user's function; what is wrong with them where they do not.

Comes in: a function and the arguments of a call. Goes out: the arguments in one order with the
names of the last of them, which go by name, or an error that names the argument.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sbp.api.options import function_name, parameter_names, signature_of
from sbp.api.requests import path_of
from sbp.errors import SbpError


def struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weak type of an argument leaf, whatever holds it.

    Raises:
        TypeError: It is no array.
        OverflowError: It is a Python number too large for an array.
    """
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = _typeof(leaf)
    dtype = leaf.dtype
    if not getattr(dtype, "isnative", True):
        raise TypeError(f"bytes of dtype {dtype} are in another order than jax takes")
    if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(
        leaf.shape, dtype, weak_type=bool(getattr(leaf, "weak_type", False))
    )


def _typeof(leaf: Any) -> Any:
    try:
        return jax.typeof(leaf)
    except ValueError as error:  # what jax says of masked arrays
        raise TypeError(str(error)) from error


def in_order(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The arguments of a call in an order that does not depend on how they were written.

    Returns:
        The arguments, and the names of the last of them, which the function takes by name: those
        behind one that is left to its default, those it takes by name only, and those of its
        `**kwargs`. A default is no argument: the function sees its own Python value.

    Raises:
        SbpError: The function cannot be called so.
    """
    if not kwargs:
        return tuple(args), ()
    bound = check_call(fn, args, kwargs)
    order = {name: k for k, name in enumerate(bound.signature.parameters)}
    names = sorted(bound.kwargs, key=lambda name: (order.get(name, len(order)), name))
    return (*bound.args, *(bound.kwargs[name] for name in names)), tuple(names)


def call(fn: Callable[..., Any], arguments: Sequence[Any], keywords: Sequence[str]) -> Any:
    """Calls a function with arguments as `in_order` gives them."""
    count = len(arguments) - len(keywords)
    return fn(*arguments[:count], **dict(zip(keywords, arguments[count:], strict=True)))


def marked(
    fn: Callable[..., Any], marks: Sequence[int | str], num_arguments: int, keywords: Sequence[str]
) -> tuple[int, ...]:
    """Which arguments of a call are marked.

    Args:
        fn: The function.
        marks: Positions of its parameters, or names of those that it takes by name.
        num_arguments: Number of arguments of the call.
        keywords: Names of the last of them, as `in_order` gives them.
    """
    count, names = num_arguments - len(keywords), parameter_names(fn)
    found = []
    for mark in marks:
        name = mark if isinstance(mark, str) else names[mark] if mark < len(names) else None
        if isinstance(mark, int) and mark < count:
            found.append(mark)
        elif name in keywords:
            found.append(count + keywords.index(name))
    return tuple(found)


def check_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Refuses arguments that the function cannot be called with."""
    signature, name = signature_of(fn), function_name(fn)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SbpError(
            f"{name} cannot be called so: {error}",
            why="A step takes the arguments of its function.",
            how=f"{name}{signature}",
        ) from None


def check_arguments(names: Sequence[str], arguments: Sequence[Any], static: Sequence[int]) -> None:
    """Refuses an argument that is neither a tree of arrays nor a static value."""
    for k, (name, arg) in enumerate(zip(names, arguments, strict=True)):
        if k not in static:

            def called(path: str, name: str = name) -> str:
                return f"argument {name}{'.' if path else ''}{path}"

            option = f"static_argnums={k}" if "." in name else f"static_argnames={name!r}"
            check_arrays(arg, called, f"{option}, if it is no array")
        elif not is_hashable(arg):
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
        except (TypeError, OverflowError):
            name = called(path_of(keys, ""))
            if (nearly := _nearly_an_array(leaf)) is not None:
                what, why, remedies = nearly
                raise SbpError(f"{name} is {what}", why=why, how=remedies) from None
            shown = type(leaf).__name__
            if hasattr(leaf, "dtype"):
                shown += f" of dtype {leaf.dtype}"
            raise SbpError(
                f"{name} is no array but {shown}",
                why="A step takes and returns trees of arrays and numbers.",
                how=how,
            ) from None


def _nearly_an_array(leaf: Any) -> tuple[str, str, list[str]] | None:
    """What is wrong with a number or numpy array that jax refuses, why, and how to mend it."""
    if isinstance(leaf, int):
        holds = jax.numpy.iinfo(jax.dtypes.canonicalize_dtype(int))
        other = f"numpy.uint32({leaf})" if 0 <= leaf < 2**32 else f"a float: float({leaf})"
        wider = ["jax.config.update('jax_enable_x64', True), which makes it int64"]
        wider *= holds.bits < 64 and -(2**63) <= leaf < 2**63
        return (
            f"{leaf}, which is too large for {holds.dtype}",
            f"A Python int becomes {holds.dtype}, which holds {holds.min} to {holds.max}.",
            ["a smaller number", *wider, other],
        )
    if isinstance(leaf, np.ma.MaskedArray):
        return (
            "a masked array",
            "Jax has no masks: the function would see what lies under them.",
            ["fill it: .filled(0)"],
        )
    if not getattr(getattr(leaf, "dtype", None), "isnative", True):
        native = leaf.dtype.newbyteorder("=")
        return (
            f"of dtype {leaf.dtype.str}, with its bytes in another order than this machine's",
            "Jax takes arrays in the machine's order of bytes.",
            [f"convert it: .astype({native.name!r})"],
        )
    return None


def check_values(name: str, paths: Sequence[str], leaves: Sequence[Any]) -> None:
    """Refuses argument leaves that are shapes only, where values are needed."""
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise SbpError(
                f"argument {path} of {name} is a shape without values",
                why="A call computes; a plan is all that can be made from shapes.",
                how=["step.plan(...) takes shapes", "pass an array"],
            )


def check_array(array: Any, what: str, how: str = "", structs: bool = False) -> None:
    """Refuses what is no single array.

    Args:
        array: Something that a user gave.
        what: The function that it was given to.
        how: A remedy, where it is not a leaf at a time.
        structs: Whether shapes without values will do.
    """
    if isinstance(array, jax.ShapeDtypeStruct):
        fits = structs
    else:
        try:
            fits = _typeof(array) is not None
        except (TypeError, OverflowError):
            fits = False
            if (nearly := _nearly_an_array(array)) is not None:
                wrong, why, remedies = nearly
                raise SbpError(
                    f"the array given to sbp.{what} is {wrong}", why=why, how=remedies
                ) from None
    if not fits:
        raise SbpError(
            f"sbp.{what} was given something of type {type(array).__name__}, which is no array",
            why=f"It takes one array or number{'' if structs else ' with values'}.",
            how=how or f"jax.tree.map(sbp.{what}, tree) for the leaves of a tree",
        )


def is_hashable(value: Any) -> bool:
    """Whether a value can be a key, as static arguments are."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
