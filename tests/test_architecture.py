"""The house rules that a reader relies on: small modules, plain names, one way of imports."""

import ast
import logging.config
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("flowjax", "models", "sbp", "scripts", "tests")
    for path in (ROOT / package).rglob("*.py")
)
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"common", "core", "helper", "helpers", "misc", "util", "utils"}
EXCEPTIONS: frozenset[str] = frozenset()
"""Modules that break a rule of size; may only shrink."""


@pytest.mark.parametrize("source", SOURCES)
def test_module_keeps_the_house_rules(source):
    text = (ROOT / source).read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.isascii()
    assert ast.get_docstring(tree), "a module says what stage it is"
    assert not VAGUE_NAMES & {*Path(source).with_suffix("").parts}
    if source not in EXCEPTIONS:
        assert text.count("\n") <= MAX_MODULE_LINES
        assert {name: size for name, size in functions(tree) if size > MAX_FUNCTION_LINES} == {}


def functions(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_exceptions_exist():
    assert set(SOURCES) >= EXCEPTIONS


def test_imports_go_one_way(monkeypatch):
    monkeypatch.chdir(ROOT)
    # The linter configures logging, which turns off every logger there is.
    monkeypatch.setattr(logging.config, "dictConfig", lambda configuration: None)
    assert lint_imports(no_cache=True) == EXIT_STATUS_SUCCESS
