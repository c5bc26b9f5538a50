"""Errors of `sbp` in the words of the command line: options as they are typed.

Comes in: an `SbpError` that names arguments of Python. Goes out: its text with flags.
"""

import re

from sbp.errors import SbpError

_FLAGS = {
    "memory_limit": "--memory-limit",
    "max_nbytes": "--max-bytes",
    "in_sbp": "--in-sbp",
    "out_sbp": "--out-sbp",
    "donate_argnames": "--donate",
    "donate_argnums": "--donate",
    "max_axes": "--max-axes",
    "objective": "--objective",
    "lowering": "--lowering",
    "hardware": "--hardware",
    "cluster": "--hardware",
    "devices": "--devices",
    "axes": "--axes",
    "plan": "--plan",
    "mesh": "--mesh",
}
_VALUE = r"'[^']*'|\([^)]*\)|\[[^]]*\]|[^\s|,;()]+"
_GIVEN = re.compile(rf"(?<![\w.'-])(?<!mesh )({'|'.join(_FLAGS)})=({_VALUE})?")
_NAMED = re.compile(rf"\b({'|'.join(name for name in _FLAGS if '_' in name)})\b")
_PHRASES = {
    "explain() lists what it sends": "without --max-bytes flowjax plan lists what it sends",
    "pass the object that step.lower(...).compile() returns, or its as_text()": (
        "write compiled.as_text() to a file, and audit that"
    ),
    "pass the mesh, and the plan,": "the --mesh, and the --plan,",
    "with Plan.save of this version": "with this version: flowjax plan ... --json FILE",
}
_NOT_HERE = re.compile(
    r"\b(tie|search|overlap|reduce_dtype|static_arg\w+)=|\bsbp\.(Cluster|Plan|audit|parallelize)\b"
)


def as_typed(error: SbpError) -> SbpError:
    """The error with flags in place of the names of Python, without remedies that have none.

    Args:
        error: What `sbp` refused.
    """
    how = [remedy for remedy in error.how if not _NOT_HERE.search(remedy)] or error.how
    what, where, why = map(_typed, (error.what, error.where, error.why))
    return SbpError(what, where=where, why=why, how=[_typed(remedy) for remedy in how])


def _typed(text: str) -> str:
    for phrase, other in _PHRASES.items():
        text = text.replace(phrase, other)
    return _NAMED.sub(lambda found: _FLAGS[found[1]], _GIVEN.sub(_flag, text))


def _flag(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    if value is None:
        return _FLAGS[name]
    if name in ("in_sbp", "out_sbp"):  # words for everything, whatever its path
        return f"{_FLAGS[name]} '*={value[1:-1]}'"
    parts = re.findall(r"'([^']*)'", value) or [value]
    return f"{_FLAGS[name]} {','.join(parts)}"
