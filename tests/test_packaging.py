"""What is shipped: the wheel, built from the sdist, holds the five packages and their presets and runs on its own."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

REPO = Path(__file__).resolve().parent.parent
PACKAGES = {
    "kvrm": "cli",
    "kvrm_sim": "sim",
    "kvrm_gpu": "gpu",
    "kvrm_traces": "traces",
    "kvrm_analysis": "analysis",
}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def sources() -> set[str]:
    """Every file of the five packages that belongs in a wheel, as `package/...`."""
    found = set()
    for package, part in PACKAGES.items():
        folder = REPO / part
        for path in (folder / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(path.relative_to(folder).as_posix())
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, REPO, cwd=dist)
    (built,) = dist.glob("*.whl")
    return built


def test_the_wheel_holds_exactly_the_five_packages_and_their_presets(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    shipped = {name for name in names if not PurePosixPath(name).parts[0].endswith(".dist-info")}
    assert shipped == sources()
    assert {PurePosixPath(name).parts[0] for name in shipped} == set(PACKAGES)
    tables = {"kvrm_analysis/definitions.toml", "kvrm_traces/datasets.toml"}
    presets = {str(PurePosixPath(name).parent) for name in shipped - tables if name.endswith(".toml")}
    assert presets == {
        "kvrm_traces/presets",
        "kvrm_sim/presets/policies",
        "kvrm_sim/presets/models",
        "kvrm_sim/presets/hardware",
    }
    assert shipped >= {f"kvrm_analysis/report/{name}" for name in ("page.html", "page.css", "page.js", "plot.js")}
    assert shipped >= tables


def test_the_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Dependencies come from the environment of the tests, kvrm itself from the wheel alone."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    purelib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(purelib)
    here = run(sys.executable, "-c", "import numpy, os; print(os.path.dirname(numpy.__path__[0]))", cwd=tmp_path)
    # A path file after the wheel's own folder; plain lines, so the editable install's own path file is not read.
    (purelib / "dependencies.pth").write_text(here, encoding="utf-8")
    script = (
        "import kvrm, kvrm_sim, kvrm_traces, kvrm_analysis, kvrm_gpu; print(kvrm.__file__); print(kvrm.__version__)"
    )
    output = run(python, "-c", script, cwd=tmp_path)
    assert str(purelib) in output
    assert str(REPO) not in output.splitlines()[0]
    assert "kv-rm-delta" in run(python, "-m", "kvrm", "list", "policies", "--json", cwd=tmp_path)
    arguments = ("replay", "azure-conv-like", "--rows", "20", "--policy", "kv-rm", "--json")
    assert '"policy": "kv-rm"' in run(python, "-m", "kvrm", *arguments, cwd=tmp_path)
