"""Law: what the README shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def run_example():
    """What the first Python block prints; its lines keep their numbers in the README."""
    text = README.read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    lines_before = text[: match.start(1)].count("\n")
    code = compile("\n" * lines_before + match.group(1), "README.md", "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "readme"})
    return printed.getvalue()


def test_example_prints_the_plan_that_the_readme_shows():
    text = README.read_text(encoding="utf-8")
    shown = re.search(r"<!-- plan:begin -->\n```text\n(.*?)```\n<!-- plan:end -->", text, re.DOTALL)
    printed = run_example()
    assert shown is not None
    assert shown.group(1) == printed, (
        f"the block between plan:begin and plan:end of README.md should be\n{printed}"
    )


def test_files_to_read_exist():
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## Read the code") : text.index("## Develop")]
    named = re.findall(r"`([a-z_]+/[a-z_/.]*)`", section)
    assert named
    assert [name for name in named if not (README.parent / name).exists()] == []


def test_marked_test_command_is_there_for_continuous_integration():
    assert re.search(r"<!-- tests -->\n```bash\n\S+python -m pytest.*\n```", README.read_text())
