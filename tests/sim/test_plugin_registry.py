"""How users' parts are found, refused and recorded."""

from __future__ import annotations

import hashlib
import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrm_sim import plugin_registry
from kvrm_sim.config import ReplicaConfig, load_policy
from kvrm_sim.errors import ConfigError, PluginError
from kvrm_sim.plugin_registry import find, found_parts, register, using
from kvrm_sim.plugin_source import code_hash, source_hash
from kvrm_sim.plugins import Part, Placement, Pool
from kvrm_sim.policy import Policy
from kvrm_sim.router_part import Router
from kvrm_sim.router_views import RoutedRequest
from kvrm_sim.routers import make_router
from tests.sim import plugin_parts as parts

_FILE = """
from kvrm.plugins import Placement
from {helpers} import lowest

STEP = {step}

class Mine(Placement):
    name = "mine"

    @staticmethod
    def take(pool, last):
        return lowest(pool.free, STEP)
"""

_HELPERS = """
def lowest(free, step):
    block = 1
    while free[block] == 0:
        block += {step}
    return block
"""


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_registry, "_registered", {})


@pytest.fixture
def _no_packages() -> Iterator[None]:
    """What is installed is searched again, now and afterwards."""
    plugin_registry._installed.cache_clear()
    yield
    plugin_registry._installed.cache_clear()


def policy(word: str) -> Policy:
    return load_policy("kv-rm").override({"pager.placement": word})


def test_a_name_is_known_within_the_block_only() -> None:
    with using([parts.Stack]):
        assert policy("stack").parts == (parts.Stack,)
        made = policy("stack")
    with pytest.raises(ConfigError, match=r"placement = 'stack': should be 'lifo', .* or 'extent'"):
        policy("stack")
    with pytest.raises(ConfigError, match=r"placement 'stack' is unknown.*--plugin FILE"):
        _ = made.parts


def test_an_unknown_word_is_told_the_nearest_plug_in() -> None:
    with using([parts.Stack]), pytest.raises(ConfigError, match=r"or 'stack'; did you mean 'stack'\?"):
        policy("stak")
    with using([parts.Largest]), pytest.raises(ConfigError, match=r"schedule.victim = 'most-block': .*'most-blocks'\?"):
        load_policy("kv-rm").override({"schedule.victim": "most-block"})


def test_parts_of_other_kinds_do_not_answer_to_a_word() -> None:
    with using([parts.Stack]), pytest.raises(ConfigError, match=r"schedule.order = 'stack'"):
        load_policy("kv-rm").override({"schedule.order": "stack"})


def test_the_innermost_block_wins_and_then_the_process() -> None:
    class Other(parts.LowestFirst):
        name = "stack"

    register(Other)
    assert find("placement", "stack") is Other
    with using([parts.Stack]):
        assert find("placement", "stack") is parts.Stack
        assert [entry.part for entry in found_parts("placement")] == [parts.Stack]
    with (
        pytest.raises(ConfigError, match="placement 'stack' is given twice, by two classes"),
        using([Other, parts.Stack]),
    ):
        pass


def test_a_file_gives_its_parts_and_a_policy_file_may_name_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text('from kvrm.plugins import Placement\nclass Mine(Placement):\n    name = "mine"\n'
                    "    @staticmethod\n    def take(pool, last): return 1\n")  # fmt: skip
    (tmp_path / "policy.toml").write_text('base = "kv-rm"\n[pager]\nplacement = "mine"\n')
    with using([file]):
        config = ReplicaConfig.from_names(tmp_path / "policy.toml", "tiny-llama", "a100-80gb-sxm")
        assert [part.name for part in config.policy.parts] == ["mine"]
        assert found_parts("placement")[0].source == str(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "no part is in it"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("import kvrm\n\nraise RuntimeError('no')\n", "line 3: RuntimeError: no"),
        ('class A(kvrm.Placement):\n    name = "a"\n', "line 1: NameError"),
    ],
)
def test_a_file_without_a_usable_part_is_named_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"mine\.py.*{said}"), using([file]):
        pass
    with pytest.raises(ConfigError, match=r"gone\.py: No such file"), using([tmp_path / "gone.py"]):
        pass


def broken(**changes: object) -> type[Part]:
    return type("Broken", (parts.Stack,), changes)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (broken(name="lifo"), "placement 'lifo' is built in"),
        (broken(name="Two Words"), "name = 'Two Words': should be a word"),
        (broken(name="x", take=staticmethod(lambda pool: 1)), r"take should be a static method of \(pool"),
        (type("Empty", (Placement,), {"name": "x"}), "it lacks take"),
        (type("Nameless", (Placement,), {}), "is no part"),
        (dict, "is no part"),
    ],
)
def test_what_is_no_part_is_refused_with_what_would_be(part: type[Part], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        register(part)


def test_memory_of_no_length_is_refused() -> None:
    with pytest.raises(PluginError, match="placement 'x': memory_words returned -1"):
        broken(name="x", memory_words=staticmethod(lambda blocks: -1)).new_memory(3)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_no_packages")
def test_parts_of_installed_packages_are_found_and_broken_ones_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("stack", "tests.sim.plugin_parts:Stack", plugin_registry.GROUP),
        importlib.metadata.EntryPoint("lost", "no_such_package:Lost", plugin_registry.GROUP),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == "kvrm.parts" else [])
    assert policy("stack").parts == (parts.Stack,)
    assert found_parts("placement")[0].source == "a package, tests.sim.plugin_parts:Stack"
    with pytest.raises(ConfigError, match=r"not loaded: lost = 'no_such_package:Lost' .*ModuleNotFoundError"):
        policy("heap")


def test_options_that_a_part_does_not_read_are_refused() -> None:
    with using([parts.Stack, parts.ShortPrompts]):
        with pytest.raises(ConfigError, match=r"release_order.*a plug-in: it keeps its own order"):
            load_policy("kv-rm").override({"pager.placement": "stack", "pager.release_order": "sorted"})
        with pytest.raises(ConfigError, match=r"aging_s.*a plug-in: its score has the arrival's time"):
            load_policy("kv-rm").override({"schedule.order": "short-prompts", "schedule.aging_s": 1.0})
        with pytest.raises(ConfigError, match='"stack" gives single blocks'):
            load_policy("static").override({"pager.placement": "stack"})


def mine(folder: Path, step: int = 1, helper_step: int = 1) -> type[Part]:
    helpers = f"helpers_{folder.name}_{step}_{helper_step}"
    (folder / f"{helpers}.py").write_text(_HELPERS.format(step=helper_step))
    (folder / "mine.py").write_text(_FILE.format(helpers=helpers, step=step))
    with using([folder / "mine.py"]):
        part = find("placement", "mine")
    assert part is not None
    return part


def test_the_hash_of_a_part_sees_its_code_its_constants_and_its_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    first, same = code_hash(mine(tmp_path)), code_hash(mine(tmp_path))
    assert first == same
    assert len({first, code_hash(mine(tmp_path, step=2)), code_hash(mine(tmp_path, helper_step=2))}) == 3
    source = source_hash(mine(tmp_path))
    assert source != source_hash(mine(tmp_path, helper_step=2))


def test_the_recorded_hash_is_that_of_the_file() -> None:
    (record,) = plugin_registry.provenance([parts.Stack])
    file = Path(parts.__file__)
    assert record == {
        "kind": "placement", "name": "stack", "class": "Stack", "source": str(file), "compiled": False,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }  # fmt: skip


class Third(Router):
    name = "third"
    answer: object = 2

    def choose(self, _request: RoutedRequest, _replicas: object, _now_ns: int, /) -> int:
        if self.answer == "raise":
            raise KeyError("tenant")
        return self.answer  # type: ignore[return-value]  # what its tests ask for


def test_a_router_is_made_by_name_and_its_choice_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas: list[object] = [None] * 3
    with using([Third]):
        router = make_router("third")
    assert router.choose(RoutedRequest(0, 16), replicas, 0) == 2  # type: ignore[arg-type]  # it reads none
    assert router.stateless is False
    for answer, said in ((3, "returned 3 for request 7: .* 0 to 2"), (1.0, "returned 1.0"), ("raise", "KeyError")):
        monkeypatch.setattr(Third, "answer", answer)
        with pytest.raises(PluginError, match=f"router 'third': choose .*{said}"):
            router.choose(RoutedRequest(7, 16), replicas, 0)  # type: ignore[arg-type]  # it reads none
    with pytest.raises(ConfigError, match="router 'third' is unknown"):
        make_router("third")


def test_run_toml_names_the_parts(tmp_path: Path) -> None:
    from kvrm_sim.engine import run
    from kvrm_traces import open_trace

    with using([parts.LowestFirst]):
        config = ReplicaConfig(
            policy=load_policy("graph-paged").override({"pager.placement": "lowest-first"}),
            **{key: getattr(ReplicaConfig.from_names("kv-rm", "tiny-llama", "a100-80gb-sxm"), key)
               for key in ("model", "hardware")},
            pool_blocks=500,
        )  # fmt: skip
        run(open_trace("azure-conv-like", rows=3), config, out=tmp_path / "run")
    about = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert [part["name"] for part in about["run"]["plugins"]] == ["lowest-first"]
    assert about["policy"]["pager"]["placement"] == "lowest-first"


def test_the_records_are_what_the_page_says() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    for record in (Pool, parts.RunningRow, parts.WaitingRequest):
        for field in record._fields:
            assert f"`{field}`" in page.partition("| record |")[2], field
