"""Which cells a study has, and what is refused before one of them is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvrm_analysis.studies.study import load_study
from kvrm_sim.errors import ConfigError

BASE = {"trace": "azure-conv-like"}


def settings_of(study: dict[str, Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(cell.settings.get(key) for key in keys) for cell in load_study(study).cells()]


def test_axes_are_crossed_in_the_order_of_the_file() -> None:
    axes = {"policy": ["static", "kv-rm"], "trace": {"speedup": [1.0, 2.0]}}
    study = {"base": BASE, "axes": axes, "repeats": 2}
    expected = [(p, s, seed) for p in ("static", "kv-rm") for s in (1.0, 2.0) for seed in (0, 1)]
    assert settings_of(study, "policy", "trace.speedup", "seed") == expected
    cells = load_study(study).cells()
    assert [(cell.at, cell.configuration, cell.repeat) for cell in cells[:3]] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    assert load_study(study).keys[:3] == ("policy", "trace.speedup", "seed")


def test_variants_set_several_keys_and_leave_the_rest_to_the_base() -> None:
    variants = [{"policy": "static", "policy.schedule.slots": 64}, {"policy": "kv-rm"}]
    study = {"base": {**BASE, "pool_blocks": 10}, "variants": variants, "axes": {"seed": [3, 4]}}
    assert settings_of(study, "seed", "policy", "policy.schedule.slots", "pool_blocks") == [
        (3, "static", 64, 10),
        (3, "kv-rm", None, 10),
        (4, "static", 64, 10),
        (4, "kv-rm", None, 10),
    ]


def test_a_sample_is_crossed_with_the_axes() -> None:
    sample = {"method": "lhs", "points": 3, "axes": {"pool_blocks": {"range": [10, 99]}}}
    found = settings_of({"base": BASE, "axes": {"seed": [0, 1]}, "sample": sample}, "seed", "pool_blocks")
    assert [blocks for seed, blocks in found if seed == 0] == [blocks for seed, blocks in found if seed == 1]
    assert len(set(found)) == 6


@pytest.mark.parametrize(
    ("constraint", "kept"),
    [
        ("policy != 'static' or trace.speedup <= 1", [("static", 1.0), ("kv-rm", 1.0), ("kv-rm", 2.0)]),
        ("policy in ['static'] and not trace.speedup > 1.5", [("static", 1.0)]),
        ("0 < trace.speedup * 2 - 1 <= 1", [("static", 1.0), ("kv-rm", 1.0)]),
        # Keys that the study does not set: of the preset, of the device, of the replica, of the trace.
        ("policy.reserve.mode == 'paged'", [("kv-rm", 1.0), ("kv-rm", 2.0)]),
        ("hardware.memory_bytes > 1e12", []),
        ("tensor_parallel == 1 and trace.limit == None and trace.speedup > 1", [("static", 2.0), ("kv-rm", 2.0)]),
    ],
)
def test_constraints_choose_cells(constraint: str, kept: list[tuple[Any, ...]]) -> None:
    axes = {"policy": ["static", "kv-rm"], "trace.speedup": [1.0, 2.0]}
    study = {"base": BASE, "axes": axes, "constraints": [constraint]}
    if kept:
        assert settings_of(study, "policy", "trace.speedup") == kept
    else:
        with pytest.raises(ConfigError, match="each of the 4 cells is excluded: 4 by"):
            load_study(study).cells()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base": {"polcy": "static"}}, "base.polcy: unknown key; did you mean 'policy'?"),
        ({"base": {"trace": "x", "pool_blocks": "3"}}, "base.pool_blocks = '3': should be a whole number, 1 or more"),
        ({"base": {}}, "base.trace: missing"),
        ({"axes": {}}, "axes: missing: nothing varies"),
        ({"axes": {"policy": {}}}, "axes.policy = {}: an axis needs at least one value"),
        ({"axes": {}, "capacity": {}}, "[capacity] is for `kvrm capacity`"),
        ({"axis": {}}, "axis: unknown key; did you mean 'axes'?"),
        ({"repeats": 0}, "repeats = 0: should be a whole number from 1"),
        ({"repeats": 2, "axes": {"seed": [0, 1]}}, "repeats take seeds in turn, and axes sets seed too"),
        ({"variants": [{"policy": "kv-rm"}]}, "variants.policy: axes sets it too"),
        ({"variants": [{}]}, "variants, number 1: empty"),
        ({"variants": [{"polcy": 1}]}, "variants, number 1: polcy: unknown key"),
        ({"confidence": 1.0}, "confidence = 1.0: should be a share between 0 and 1"),
        ({"constraints": "policy == 'static'"}, "should be a list of texts"),
        ({"constraints": ["policy =! 'static'"]}, "constraints: \"policy =! 'static'\": invalid syntax"),
        ({"constraints": ["polcy == 'static'"]}, "did you mean 'policy'?"),
        ({"constraints": ["__import__('os')"]}, "is not understood"),
        ({"constraints": ["policy.__class__ == 1"]}, "unknown key"),
        ({"constraints": ["seed ** 2 > 3"]}, "is not understood"),
    ],
)
def test_a_wrong_study_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study({"base": BASE, "axes": {"policy": ["static", "kv-rm"]}, **change})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axes": {"policy": ["static", "kvrm"]}}, "axes.policy = 'kvrm': unknown; did you mean 'kv-rm'?"),
        ({"axes": {"model": ["llama-3-8"]}}, "axes.model = 'llama-3-8': unknown; did you mean 'llama-3-8b'?"),
        ({"axes": {"hardware": ["a100"]}}, "axes.hardware = 'a100': unknown; did you mean 'a100-"),
        ({"base": {"policy": "statik"}}, "base.policy = 'statik': unknown; did you mean 'static'?"),
        ({"base": {"hardware": {"preset": "a100-40bg"}}}, "base.hardware = 'a100-40bg': unknown; did you mean 'a100-"),
        ({"base": {"trace": "azure-conf-like"}}, "base.trace = 'azure-conf-like': unknown; did you mean 'azure-conv-"),
        ({"base": {"trace": "days.csv"}}, "base.trace = 'days.csv': no such file: days.csv"),
        ({"base": {"trace": "azure-2024-conv"}}, "kvrm trace fetch azure-2024-conv"),
        ({"variants": [{"model": "x"}, {"model": "lama-3-8b"}]}, "variants, number 1: model = 'x': unknown (known: "),
        ({"sample": {"method": "lhs", "points": 2, "axes": {"model": ["gpt-5"]}}}, "sample.axes.model = 'gpt-5': "),
        ({"axes": {"router": ["round-robbin"], "cluster": [2]}}, "axes.router = 'round-robbin': "),
        ({"axes": {"policy": ["mine.toml"]}}, "axes.policy = 'mine.toml': mine.toml: No such file"),
    ],
)  # fmt: skip
def test_a_name_that_stands_for_nothing_is_refused_with_the_nearest(
    change: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no data set was fetched
    with pytest.raises(ConfigError) as caught:
        load_study({"axes": {"seed": [0]}, **change, "base": {**BASE, **change.get("base", {})}})
    assert said in str(caught.value)
    assert caught.value.key is not None


def test_files_of_a_study_are_looked_up_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "kv-rm"\n[pager]\nblock_size_tokens = 0\n')
    (tmp_path / "day.csv").touch()
    study = tmp_path / "study.toml"
    study.write_text('[base]\ntrace = "day.csv"\n[axes]\npolicy = ["static", "mine.toml"]\n')
    with pytest.raises(ConfigError) as caught:
        load_study(study)
    assert str(caught.value) == (
        f"{study}: axes.policy = 'mine.toml': {tmp_path / 'mine.toml'}: pager.block_size_tokens = 0: should be a whole "
        "number, 1 or more"
    )


def test_each_constraint_counts_the_cells_that_it_excludes() -> None:
    axes = {"policy": ["static", "kv-rm"], "trace.speedup": [1.0, 2.0, 3.0]}
    rules = ["policy != 'static' or trace.speedup <= 1", "trace.speedup < 3", "seed < 10"]
    cells, excluded = load_study({"base": BASE, "axes": axes, "constraints": rules, "repeats": 2}).chosen()
    assert excluded == {rules[0]: 4, rules[1]: 2, rules[2]: 0}
    assert len(cells) == 12 - 6


def test_a_study_of_which_nothing_is_left_says_what_excludes_it() -> None:
    rules = ["policy == 'static'", "trace.speedup > 3"]
    study = load_study({"base": BASE, "axes": {"policy": ["static", "kv-rm"], "trace.speedup": [1.0, 2.0]},
                        "constraints": rules})  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        study.cells()
    assert str(caught.value) == (
        "constraints: each of the 4 cells is excluded: 2 by \"policy == 'static'\", 2 by 'trace.speedup > 3'"
    )


def test_a_comparison_that_cannot_be_told_names_the_values() -> None:
    study = load_study({"base": BASE, "axes": {"seed": [0]}, "constraints": ["trace.limit > seed"]})
    with pytest.raises(ConfigError, match=r"'trace.limit > seed' with trace.limit = None, seed = 0"):
        study.cells()


def test_a_trillion_cells_are_counted_and_not_made() -> None:
    axes = {"pool_blocks": {"range": [1, 1_000_000], "step": 1}, "seed": {"range": [0, 999_999], "step": 1}}
    with pytest.raises(ConfigError) as caught:
        load_study({"base": BASE, "axes": axes})
    assert "1,000,000,000,000 cells: pool_blocks 1,000,000 x seed 1,000,000; max_cells = 100,000" in str(caught.value)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[base]\ntrace = 'azure-conv-like'\n[axes]\nseed = []\n")
    with pytest.raises(ConfigError) as caught:
        load_study(file)
    assert str(caught.value) == f"{file}: axes.seed = []: an axis needs at least one value"
    file.write_text("[axes]\npolicy = ['static']\npolicy.pager.block_size_tokens = [16]\n")
    with pytest.raises(ConfigError, match="written in quotes"):
        load_study(file)
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_study(tmp_path / "none.toml")
