"""The keys of a study: known, checked against the object that owns them, with the nearest one for a slip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvrm_analysis.studies.cell_rows import METRICS, WORDS
from kvrm_analysis.studies.settings import checked, flattened, known_keys
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import ConfigError
from kvrm_sim.plugin_registry import using
from tests.sim.plugin_parts import Stack


def test_every_key_of_a_built_configuration_is_known() -> None:
    config = ReplicaConfig.from_names("kv-rm-window", "llama-3-8b", "a100-80gb-sxm").to_dict()

    def leaves(values: dict[str, Any], prefix: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in values.items():
            inner = isinstance(value, dict) and set(value) != {"value", "provenance", "source"}
            found |= leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}
        return found

    assert leaves(config) - set(known_keys()) == set()


def test_no_key_is_the_name_of_a_column_of_results() -> None:
    taken = {"cell", "configuration", "repeat", "key", *WORDS, *(metric.name for metric in METRICS)}
    assert taken & set(known_keys()) == set()
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_values_become_plain_and_names_of_sections_stand_for_what_they_name() -> None:
    found = checked({"trace": "x", "memory_utilisation": 1, "trace.window_s": [0, 5], "model.preset": "llama-3-8b"})
    assert found == {
        "trace.source": "x",
        "memory_utilisation": 1.0,
        "trace.window_s": [0.0, 5.0],
        "model": "llama-3-8b",
    }
    assert isinstance(found["memory_utilisation"], float)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("polcy", "static", "did you mean 'policy'?"),
        ("pool_bloks", 3, "did you mean 'pool_blocks'?"),
        ("policy.pager.block_sise_tokens", 16, "did you mean 'policy.pager.block_size_tokens'?"),
        ("block_size_tokens", 16, "did you mean 'policy.pager.block_size_tokens'?"),
        ("hardware.hbm", 1.0, "did you mean 'hardware."),
        ("pool_blocks", "3", "pool_blocks = '3': should be a whole number, 1 or more"),
        ("pool_blocks", 0, "pool_blocks = 0: should be a whole number, 1 or more"),
        ("pool_blocks", True, "pool_blocks = True"),
        ("policy.launch.batch_sizes", [4, 2], "entries should ascend strictly"),
        ("policy.transport.merge", "adj", "should be 'none' or 'adjacent'"),
        ("policy.pager.placement", "lifoo", "did you mean 'lifo'?"),
        ("hardware.h2d_bytes_per_s", -1.0, "should be a number above 0"),
        ("trace.speedup", float("inf"), "should be a finite number"),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_what_would_be_right(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked({key: value})
    assert said in str(caught.value)
    assert str(caught.value).startswith(key)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trace\.source: given twice"):
        checked({"trace": "x", "trace.source": "y"})


def test_a_users_part_is_a_value_while_it_is_given() -> None:
    with pytest.raises(ConfigError, match="placement"):
        checked({"policy.pager.placement": Stack.name})
    with using([Stack]):
        assert checked({"policy.pager.placement": Stack.name})


def test_tables_flatten_to_dotted_keys_but_for_those_that_are_values() -> None:
    coefficient = {"value": 1e10, "provenance": "assumed", "source": "a guess"}
    given = {"trace": {"source": "x", "columns": {"arrival": "when"}}, "policy": {"preset": "static"}}
    given["hardware"] = {"h2d_bytes_per_s": coefficient}
    assert flattened(given) == {
        "trace.source": "x",
        "trace.columns": {"arrival": "when"},
        "policy.preset": "static",
        "hardware.h2d_bytes_per_s": coefficient,
    }
    assert checked(flattened(given))["hardware.h2d_bytes_per_s"] == coefficient


def test_what_is_checked_is_not_read(tmp_path: Path) -> None:
    # Whether a preset or a file exists is told by the cell, or by the study that names it.
    assert checked({"policy": str(tmp_path / "none.toml")})
