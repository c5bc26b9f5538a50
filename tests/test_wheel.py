"""What the built wheel holds: the two packages and nothing of the source tree around them."""

import subprocess
import sys
import zipfile
from pathlib import Path

import flowjax

ROOT = Path(__file__).parent.parent


def test_wheel_holds_the_two_packages_only(tmp_path):
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path,
        ROOT,
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"flowjax_sbp-{flowjax.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {name for name in names if ".dist-info/" not in name}
    assert shipped == {
        path.relative_to(ROOT).as_posix()
        for package in ("flowjax", "sbp")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".css", ".js", ".py") or path.name == "py.typed"
    }
    assert {"flowjax/py.typed", "sbp/py.typed", "sbp/plan/page.css"} <= shipped
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
