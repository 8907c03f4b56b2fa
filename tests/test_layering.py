"""Which part may import what: traces <- sim <- gpu; traces, sim <- analysis; everything <- cli."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
FOLDERS = {
    "kvrm_traces": REPO / "traces" / "kvrm_traces",
    "kvrm_sim": REPO / "sim" / "kvrm_sim",
    "kvrm_gpu": REPO / "gpu" / "kvrm_gpu",
    "kvrm_analysis": REPO / "analysis" / "kvrm_analysis",
    "kvrm": REPO / "cli" / "kvrm",
}
MAY_IMPORT = {
    "kvrm_traces": set[str](),
    "kvrm_sim": {"kvrm_traces"},
    "kvrm_gpu": {"kvrm_traces", "kvrm_sim"},
    "kvrm_analysis": {"kvrm_traces", "kvrm_sim"},
    "kvrm": {"kvrm_traces", "kvrm_sim", "kvrm_gpu", "kvrm_analysis"},
}
ONLY_IN = {
    "torch": {"gpu/kvrm_gpu"},
    "triton": {"gpu/kvrm_gpu"},
    "simpy": {"sim/kvrm_sim/engine.py", "sim/kvrm_sim/cluster.py"},
    "matplotlib": {"analysis/kvrm_analysis"},
    "typer": {"cli/kvrm"},
    "rich": {"cli/kvrm"},
}
#: Modules that may know each other: the loop takes the engine's replica as the type of an argument, and only the engine
#: may import simpy.
TIED = [{"kvrm_sim.closed_loop", "kvrm_sim.engine"}]
MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 70


def modules() -> list[tuple[str, Path]]:
    return [(package, path) for package, folder in FOLDERS.items() for path in sorted(folder.rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_roots(tree: ast.Module) -> Iterator[str]:
    """Top-level names of every absolute import, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def violations(package: str, relative: str, tree: ast.Module) -> list[str]:
    found = []
    for root in imported_roots(tree):
        if root in FOLDERS and root != package and root not in MAY_IMPORT[package]:
            found.append(f"{relative} imports {root}: {package} may import only {sorted(MAY_IMPORT[package])}")
        if root in ONLY_IN and not any(relative == only or relative.startswith(only + "/") for only in ONLY_IN[root]):
            found.append(f"{relative} imports {root}: it is for {sorted(ONLY_IN[root])} only")
    return found


def test_every_package_has_modules() -> None:
    empty = [package for package, folder in FOLDERS.items() if not (folder / "__init__.py").is_file()]
    assert empty == []


def test_imports_point_one_way() -> None:
    found = [
        line
        for package, path in modules()
        for line in violations(package, path.relative_to(REPO).as_posix(), parsed(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("package", "relative", "source"),
    [
        ("kvrm_traces", "traces/kvrm_traces/schema.py", "def f():\n    from kvrm_sim import config\n"),
        ("kvrm_sim", "sim/kvrm_sim/config.py", "import torch.cuda\n"),
        ("kvrm_sim", "sim/kvrm_sim/scheduler.py", "import simpy\n"),
        ("kvrm_sim", "sim/kvrm_sim/engine_extra.py", "import simpy\n"),
        ("kvrm_analysis", "analysis/kvrm_analysis/drawing/figures.py", "import kvrm_gpu\n"),
    ],
)
def test_a_wrong_import_is_seen(package: str, relative: str, source: str) -> None:
    assert len(violations(package, relative, ast.parse(source))) == 1


def imported_modules(tree: ast.Module, known: set[str]) -> set[str]:
    """Of these modules, those that a source imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known or {node.module}
    return found & known


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules each of which imports, by way of others, itself."""
    reach = {module: set(direct) for module, direct in imports.items()}
    for by in reach:
        for module, reached in reach.items():
            if by in reached:
                reach[module] = reached | reach[by]
    tied = {module: {other for other in reach[module] if module in reach[other]} for module in reach}
    return [found for module, found in tied.items() if found and module == min(found)]


def test_a_circle_of_imports_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Also where it would work: inside a function, or for types alone."""
    paths = {
        ".".join((package, *path.relative_to(FOLDERS[package]).with_suffix("").parts)).removesuffix(".__init__"): path
        for package, path in modules()
        if package != "kvrm_traces"
    }
    found = circles({name: imported_modules(parsed(path), set(paths)) - {name} for name, path in paths.items()})
    assert [circle for circle in found if circle not in TIED] == []


def declared() -> set[str]:
    """Import names of the declared dependencies and of the extras that the product itself uses."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["gpu"], *extras["ray"], *extras["tune"]]
    return {re.split(r"[^A-Za-z0-9_-]", line, maxsplit=1)[0].replace("-", "_") for line in lines}


def test_every_third_party_import_is_declared() -> None:
    # pydantic_core is half of pydantic: each release of one requires exactly one release of the other.
    known = declared() | {"pydantic_core"} | set(FOLDERS) | set(sys.stdlib_module_names)
    missing = {
        f"{path.relative_to(REPO).as_posix()}: {root}"
        for _, path in modules()
        for root in imported_roots(parsed(path))
        if root not in known
    }
    assert sorted(missing) == []


def test_modules_and_functions_stay_small() -> None:
    large = []
    for _, path in modules():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_MODULE_LINES:
            large.append(f"{path.relative_to(REPO).as_posix()}: {lines} lines")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    large.append(f"{path.relative_to(REPO).as_posix()}:{node.lineno} {node.name}: {length} lines")
    assert large == []
