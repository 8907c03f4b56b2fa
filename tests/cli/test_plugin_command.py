"""Plug-ins on the command line and in the public functions, and the example of docs/plugins.md as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kvrm
import kvrm.plugins
from kvrm.plugins import Placement, Router
from tests.cli.cli_process import kvrm as command
from tests.cli.cli_process import refusal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
SMALL = ("azure-conv-like", "--rows", "5", "--policy", "graph-paged", "--pool-blocks", "2000")

_PARTS = '''
from kvrm.plugins import Placement, Router, Victim

class Highest(Placement):
    """The highest free id."""

    name = "highest"

    @staticmethod
    def take(pool, last):
        block = pool.blocks
        while pool.free[block] == 0:
            block -= 1
        return block

class Null(Placement):
    name = "null"

    @staticmethod
    def take(pool, last):
        return 0

class Second(Router):
    """Always the second replica."""

    name = "second"
    stateless = True

    def choose(self, request, replicas, now_ns):
        return 1
'''


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, as a reader would copy them."""
    folder = tmp_path_factory.mktemp("example")
    found = re.findall(r"^    # (\w+\.py)\n((?:    .*\n|\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for name, text in found:
        (folder / name).write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE).rstrip() + "\n")
    assert [name for name, _ in found] == ["next_fit.py", "test_next_fit.py"]
    return folder


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    file = tmp_path / "parts.py"
    file.write_text(_PARTS)
    return file


def test_the_placement_and_the_test_of_the_page_work_as_written_and_are_short(example: Path) -> None:
    assert sum(len(file.read_text().splitlines()) for file in example.glob("*.py")) < 60
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_next_fit.py"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(example), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(test, cwd=example, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_example_compiled_and_interpreted_give_the_same_run(example: Path) -> None:
    (example / "slow.py").write_text(
        "from next_fit import NextFit\n\nclass Slow(NextFit):\n    name = 'slow-fit'\n    compiled = False\n"
    )
    tables = []
    sys.path.insert(0, str(example))
    try:
        for file, word in (("next_fit.py", "next-fit"), ("slow.py", "slow-fit")):
            done = kvrm.replay(
                kvrm.open_trace("azure-conv-like", rows=2),
                "kv-rm",
                plugins=[example / file],
                overrides={"pager.placement": word},
            )
            tables.append((done.results[0].requests, done.results[0].steps))
    finally:
        sys.path.remove(str(example))
    assert tables[0][0].equals(tables[1][0])
    assert tables[0][1].equals(tables[1][1])


def test_a_run_says_that_it_is_slow_and_records_the_part(parts: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = command("replay", *SMALL, "--plugin", parts, "--set", "pager.placement=highest", "--out", out)
    assert done.returncode == 0, done.stderr
    if os.environ.get("KVRM_CORE") != "interpreted":
        assert "kvrm: placement 'highest' runs interpreted, and the core with it: about a thousand" in done.stderr
    (record,) = tomllib.loads((out / "run.toml").read_text())["run"]["plugins"]
    assert (record["kind"], record["name"], record["source"]) == ("placement", "highest", str(parts))


def test_list_shows_plug_ins_with_where_they_come_from(parts: Path) -> None:
    listed = json.loads(command("list", "policies", "--json", "--plugin", parts).stdout)
    assert "kv-rm" in listed
    assert listed["pager.placement=highest"] == f"plug-in of {parts}, interpreted: The highest free id."
    assert listed["--router second"] == f"plug-in of {parts}: Always the second replica."
    assert "pager.placement=lifo" not in listed
    everything = json.loads(command("list", "parts", "--json", "--plugin", parts).stdout)
    assert everything["schedule.victim=last"] == "built in"
    assert everything["pager.placement=null"].endswith("parts.py, interpreted")
    assert "second" in json.loads(command("list", "routers", "--json", "--plugin", parts).stdout)


def test_an_unknown_word_is_told_with_plug_ins(parts: Path) -> None:
    said = refusal("replay", *SMALL, "--plugin", parts, "--set", "pager.placement=hihgest")
    assert "pager.placement = 'hihgest': should be 'lifo', " in said
    assert said.rstrip().endswith("'highest' or 'null'; did you mean 'highest'?")


@pytest.mark.parametrize(("name", "said"), [("gone.py", "gone.py: No such file"), ("empty.py", "no part is in it")])
def test_a_file_that_is_no_plug_in_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty.py").write_text("")
    assert said in refusal("replay", *SMALL, "--plugin", tmp_path / name)
    assert said in refusal("list", "parts", "--plugin", tmp_path / name)


def test_a_part_that_goes_wrong_is_one_line_and_exit_code_1(parts: Path) -> None:
    done = command("replay", *SMALL, "--plugin", parts, "--set", "pager.placement=null")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("kvrm: placement 'null': take returned 0, which is no free block")


def test_a_router_is_taken_by_name_and_recorded(parts: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = command("replay", *SMALL, "--cluster", "2", "--router", "second", "--plugin", parts, "--out", out)
    assert done.returncode == 0, done.stderr
    (summary,) = json.loads((out / "summary.json").read_text())["runs"]
    assert [row["requests"] for row in summary["cluster"]["per_replica"]] == [0, 5]
    (record,) = tomllib.loads((out / "run.toml").read_text())["run"]["plugins"]
    assert (record["kind"], record["name"]) == ("router", "second")
    assert "router 'second' is unknown" in refusal("replay", *SMALL, "--cluster", "2", "--router", "second")


def test_compare_takes_parts_as_classes() -> None:
    class Lowest(Placement):
        name = "least-id"

        @staticmethod
        def take(pool: kvrm.plugins.Pool, last: int) -> int:
            block = 1
            while pool.free[block] == 0:
                block += 1
            return block

    trace = kvrm.open_trace("azure-conv-like", rows=3)
    done = kvrm.compare(
        trace,
        ["graph-paged", "dynamic"],
        plugins=[Lowest],
        overrides={"pager.placement": "least-id"},
        pool_blocks=2000,
    )
    lowest = kvrm.compare(trace, ["graph-paged", "dynamic"], overrides={"pager.placement": "lowest"}, pool_blocks=2000)
    for found, expected in zip(done.results, lowest.results, strict=True):
        assert found.steps.equals(expected.steps)


def test_the_public_names_of_plug_ins() -> None:
    assert sorted(kvrm.plugins.__all__) == [
        "Order", "PartSource", "Placement", "Pool", "Router", "RunningRow", "Victim", "WaitingRequest", "register",
        "using",
    ]  # fmt: skip
    assert issubclass(kvrm.plugins.Router, Router)
