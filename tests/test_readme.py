"""Law: what the README shows is what happens."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from flowjax.cli.arguments import make_parser
from flowjax.cli.auditing import run_audit
from flowjax.cli.planning import run_plan

README = Path(__file__).parent.parent / "README.md"


def run_examples():
    """What each Python block prints, in one module; lines keep their numbers in the README."""
    text = README.read_text(encoding="utf-8")
    names = {"__name__": "readme"}
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        lines_before = text[: match.start(1)].count("\n")
        code = compile("\n" * lines_before + match.group(1), "README.md", "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        yield printed.getvalue()


def test_examples_print_what_the_readme_shows():
    text = README.read_text(encoding="utf-8")
    for name, printed in zip(("plan", "claims", None, "meshes"), run_examples(), strict=True):
        if name is None:
            assert not printed
            continue
        block = rf"<!-- {name}:begin -->\n```text\n(.*?)```\n<!-- {name}:end -->"
        shown = re.search(block, text, re.DOTALL)
        assert shown is not None
        assert shown.group(1) == printed, (
            f"the block between {name}:begin and {name}:end of README.md should be\n{printed}"
        )


def test_commands_of_the_readme_are_understood():
    text = README.read_text(encoding="utf-8")
    commands = re.findall(r"^flowjax (.*)$", text, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        make_parser(run_plan, run_audit).parse_args(shlex.split(command))


def test_files_to_read_exist():
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## Read the code") : text.index("## Develop")]
    named = re.findall(r"`([a-z_]+/[a-z_/.]*)`", section)
    assert named
    assert [name for name in named if not (README.parent / name).exists()] == []


def test_marked_test_command_is_there_for_continuous_integration():
    assert re.search(r"<!-- tests -->\n```bash\n\S+python -m pytest.*\n```", README.read_text())
