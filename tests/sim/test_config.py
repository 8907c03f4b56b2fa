"""Configurations: TOML in and out, named errors, refused combinations, presets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from kvrm_sim.config import (
    Policy,
    ReplicaConfig,
    config_hash,
    hardware_names,
    load_hardware,
    load_model,
    load_policy,
    model_names,
    policy_names,
)
from kvrm_sim.errors import ConfigError, InputError

REPO = Path(__file__).resolve().parents[2]


def replica(policy: str = "kv-rm", **settings: Any) -> ReplicaConfig:
    return ReplicaConfig.from_names(policy, "llama-3-8b", "a100-80gb-sxm", **settings)


def refused(policy: str, changes: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_policy(policy).override(changes)
    return str(caught.value)


def test_presets_are_those_promised() -> None:
    assert set(policy_names()) == {
        "static", "static-batch", "bucketed", "orca-max", "orca-pow2", "orca-oracle", "dynamic", "graph-paged", "kv-rm",
        "kv-rm-delta", "kv-rm-window", "vmm",
    }  # fmt: skip
    assert len(model_names()) == 10
    assert hardware_names() == ("a100-40gb", "a100-80gb-sxm", "h100-80gb-sxm", "h200")


@pytest.mark.parametrize("name", policy_names())
def test_every_preset_has_its_section_in_the_docs(name: str) -> None:
    page = (REPO / "docs" / "policies.md").read_text()
    assert f"\n## {name}\n" in page
    assert f"| [{name}](#{name}) |" in page


@pytest.mark.parametrize("name", policy_names())
def test_a_configuration_survives_toml(name: str) -> None:
    config = replica(name, max_context_tokens=4096, seed=7)
    again = ReplicaConfig.from_toml(config.to_toml())
    assert again == config
    assert config_hash(again) == config_hash(config)
    assert config.policy.name == name
    assert config.policy.description


def test_a_file_gives_the_same_configuration(tmp_path: Path) -> None:
    config = replica()
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert ReplicaConfig.from_file(tmp_path / "run.toml") == config


def test_the_hash_sees_every_value() -> None:
    config = replica()
    assert config_hash(config) != config_hash(config.override({"seed": 1}))
    assert config_hash(config) != config_hash(config.override({"policy.pager.block_size_tokens": 32}))
    assert config_hash(config) != config_hash(config.override({"hardware.host_row_ns.value": 1.0}))


def test_the_default_policy_parts() -> None:
    policy = load_policy("dynamic")
    assert policy.pager.block_size_tokens == 16
    assert policy.schedule.slots == 256
    assert policy.schedule.watermark == 0.0
    assert policy.schedule.admission == "full_prompt"
    assert load_policy("kv-rm").schedule.slots == "auto"


def test_configurations_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        replica().seed = 3  # type: ignore[misc]  # that it cannot be done is what is tested


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy.pager.block_size": 16}, "pager.block_size: unknown key; did you mean 'block_size_tokens'?"),
        ({"policy.block_size_tokens": 16}, "block_size_tokens: unknown key; did you mean 'pager.block_size_tokens'?"),
        ({"polcy": 1}, "polcy: unknown key; did you mean 'policy'?"),
        ({"policy.pager.block_size_tokens": 0}, "pager.block_size_tokens = 0: should be a whole number, 1 or more"),
        (
            {"policy.pager.block_size_tokens": 16.0},
            "pager.block_size_tokens = 16.0: should be a whole number, 1 or more",
        ),
        ({"policy.launch.mode": "graf"}, "launch.mode = 'graf': should be 'eager' or 'graph'; did you mean 'graph'?"),
        ({"policy.launch.batch_sizes": "vlm"}, "did you mean 'vllm'?"),
        ({"policy.launch.batch_sizes": [4, 2]}, "launch.batch_sizes = [4, 2]: entries should ascend strictly"),
        ({"policy.launch.batch_sizes": []}, "should be a list of at least one whole number"),
        ({"policy.launch.batch_sizes": [True]}, "each entry should be a whole number"),
        ({"policy.schedule.slots": 0}, 'schedule.slots = 0: should be a whole number, 1 or more, or "auto"'),
        ({"policy.schedule.watermark": 1.0}, "schedule.watermark = 1.0: should be a number, at least 0 and below 1"),
        ({"policy.pager.placement": None}, "pager.placement: missing"),
        ({"memory_utilisation": 1.1}, "memory_utilisation = 1.1: should be a number above 0 and at most 1"),
        ({"over_limit": "drop"}, "over_limit = 'drop': should be 'reject', 'truncate' or 'error'"),
        ({"window_s": float("nan")}, "window_s = nan"),
        ({"max_context_tokens": 8193}, "max_context_tokens = 8193 is above the limit of model 'llama-3-8b', 8192"),
        ({"tensor_parallel": 3}, "tensor_parallel = 3: model 'llama-3-8b' has heads = 32, which it does not divide"),
        ({"kv_bytes_per_token": 1001}, "kv_bytes_per_token = 1001 is not a multiple of model.layers = 32"),
        ({"seed.a": 1}, "seed.a: 'seed' is a value, not a table"),
        (
            {"policy.speculation": {"draft_tokens": 3, "acceptance": 0.5, "draft_ms": 1e13}},
            "draft_ms = 10000000000000.0: should be a number from 0 to 1,000,000",
        ),
        ({"policy.speculation": {"draft_tokens": 10**20, "acceptance": 0.5}}, "a whole number from 1 to 2,147,483,647"),
        (
            {"policy.pager.compaction": "threshold", "policy.pager.compaction_max_moves": 10**20},
            "a whole number from 1 to 2,147,483,647",
        ),
        (
            {"policy.schedule.preempt": "swap", "policy.host": {"memory_gib": 1e300}},
            "a number above 0 and at most 16,384",
        ),
    ],
)
def test_a_wrong_value_names_its_key_and_what_would_be_right(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replica().override({"seed": 0, **changes})
    assert message in str(caught.value)
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2


def test_errors_survive_pickling() -> None:
    error = ConfigError("a.b = 3: should be 4", "a.b", 3)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.key, again.value) == (str(error), "a.b", 3)


@pytest.mark.parametrize(
    ("policy", "changes", "reason"),
    [
        ("dynamic", {"read.what": "reserved", "read.extent": "bucket"}, "needs a contiguous reservation"),
        ("dynamic", {"read.what": "live"}, "needs a contiguous reservation"),
        ("static", {"read.what": "table"}, 'needs reserve.mode = "paged"'),
        ("static", {"read.extent": "live"}, "reserved reads cover the whole extent"),
        ("orca-max", {"pager.placement": "lifo"}, "needs one contiguous run"),
        ("orca-max", {"reserve.mode": "bucket"}, "needs reserve.buckets_tokens"),
        ("orca-max", {"reserve.buckets_tokens": [128]}, "has no effect"),
        ("orca-max", {"reserve.declared_default_tokens": 128}, "has no effect"),
        ("dynamic", {"launch.batch_sizes": "vllm"}, "captures nothing"),
        ("dynamic", {"launch.mixed": "piecewise"}, "captures nothing"),
        ("graph-paged", {"launch.mode": "eager"}, "'vllm' and launch.mixed = 'piecewise' have no effect"),
        ("kv-rm", {"launch.token_sizes": [16]}, 'with launch.mixed = "eager"'),
        ("graph-paged", {"transport.scope": "model"}, "moves nothing"),
        ("kv-rm", {"transport.staging": "delta"}, 'needs scope = "model"'),
        ("kv-rm", {"transport.submission": "batch"}, "inside a captured graph"),
        ("kv-rm", {"transport.submission": "per_copy"}, "inside a captured graph"),
        ("kv-rm-delta", {"transport.double_buffered": True}, "every layer"),
        ("dynamic", {"schedule.token_budget": 255}, "would not get its token"),
        ("dynamic", {"schedule.prefill": "none", "schedule.token_budget": 4096}, "has no effect"),
        ("graph-paged", {"schedule.prefill": "none"}, "where every step decodes"),
        ("orca-max", {"schedule.admission": "first_chunk"}, "has no chunks"),
        ("orca-max", {"schedule.admission": "first_chunk", "schedule.prefill": "chunked"}, "is taken whole"),
        ("dynamic", {"pager.extent_blocks": 8}, 'with pager.placement = "lifo"'),
        ("kv-rm", {"pager.release_order": "sorted"}, "does not depend on the order of the releases"),
        ("static", {"pager.prefix_sharing": True}, "cannot be another request's as well"),
        ("dynamic", {"pager.partial_tail": "copy"}, "without pager.prefix_sharing"),
        ("dynamic", {"schedule.aging_s": 1.0}, "serves by age alone"),
        ("static", {"schedule.victim": "largest"}, "never preempted"),
        ("static", {"far_history": {"window_tokens": 64, "summary_blocks": 0}}, "gives nothing back before"),
        ("kv-rm-window", {"far_history.window_tokens": 100}, "is not a multiple of"),
        ("kv-rm-window", {"pager.prefix_sharing": True}, "that other requests share"),
        ("kv-rm-delta", {"far_history": {"window_tokens": 64, "summary_blocks": 0}}, "nothing that was staged"),
    ],
)
def test_a_combination_is_refused_with_its_reason(policy: str, changes: dict[str, object], reason: str) -> None:
    message = refused(policy, changes)
    assert reason in message
    assert f"policy {policy!r}" in message


def test_a_block_that_its_mapping_decides_is_refused_unless_it_is_that_one() -> None:
    """A page of 64 KiB holds 32 tokens of a layer's keys of this model on one device, 64 of them on each of two."""
    made = ReplicaConfig.from_names("vmm", "llama-3-8b", "a100-80gb-sxm")
    assert made.policy.pager.block_size_tokens == 32
    with pytest.raises(ConfigError) as caught:
        made.override({"policy.pager.block_size_tokens": 48})
    message = str(caught.value)
    assert "pager.block_size_tokens = 48 has no effect" in message
    assert "with pager.page_kib = 64 one holds 32 tokens of model 'llama-3-8b'" in message
    with pytest.raises(ConfigError, match="block_size_tokens = 32 has no effect"):
        ReplicaConfig(
            policy=load_policy("vmm").override({"pager.block_size_tokens": 32}),
            model=made.model,
            hardware=made.hardware,
            tensor_parallel=2,
        )
    assert made.override({"policy.pager.block_size_tokens": 32}) == made, "what follows anyway may be written down"


@pytest.mark.parametrize(
    ("changes", "tokens"), [({"policy.pager.page_kib": 2048}, 1024), ({"tensor_parallel": 2}, 64), ({"seed": 3}, 32)]
)
def test_a_block_of_mapped_pages_follows_what_changes(changes: dict[str, object], tokens: int) -> None:
    made = ReplicaConfig.from_names("vmm", "llama-3-8b", "a100-80gb-sxm").override(changes)
    assert made.policy.pager.block_size_tokens == tokens
    assert ReplicaConfig.from_toml(made.to_toml()) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"launch.mode": "eager", "transport.submission": "batch"},
        {"transport.scope": "model", "transport.staging": "delta", "transport.submission": "per_copy"},
        {"transport.merge": "none"},
        {"layout": "block_major"},
        {"transport.double_buffered": True},
        {"schedule.admission": "first_chunk"},
        {"schedule.prefill": "none", "schedule.token_budget": None},
        {"pager.placement": "buddy"},
        {"pager.placement": "extent", "pager.extent_blocks": 8},
        {"pager.placement": "fifo", "pager.release_order": "sorted"},
        {"pager.prefix_sharing": True, "pager.partial_tail": "copy"},
        {"schedule.order": "priority", "schedule.aging_s": 10.0, "schedule.victim": "lowest_priority"},
        {"far_history": {"window_tokens": 1024, "summary_blocks": 0}},
    ],
)
def test_each_layer_of_kv_rm_can_be_switched_alone(changes: dict[str, object]) -> None:
    policy = load_policy("kv-rm").override(changes)
    assert policy != load_policy("kv-rm")
    assert Policy.from_toml(policy.to_toml()) == policy


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"policy 'kvrm' is unknown; did you mean 'kv-rm'\?"):
        load_policy("kvrm")
    with pytest.raises(ConfigError, match=r"model 'llama3-8b' is unknown; did you mean 'llama-3.*8b'\?"):
        load_model("llama3-8b")
    with pytest.raises(ConfigError, match=r"or give the path of a \.toml file"):
        load_hardware("tpu")


def test_a_users_policy_may_start_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "big-blocks.toml"
    path.write_text('base = "kv-rm"\n[pager]\nblock_size_tokens = 64\n')
    policy = load_policy(path)
    assert policy.name == "big-blocks"
    assert policy == load_policy("kv-rm").override({"pager.block_size_tokens": 64, "name": "big-blocks"})
    assert load_policy(str(path)) == policy


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = ", "not valid TOML"),
        (b"\xff\xfe\x00", "not a text file"),
        (b'base = "kv-mr"', "policy 'kv-mr' is unknown; did you mean 'kv-rm'?"),
        (b'base = "kv-rm"\n[pager]\nplacment = "lifo"', "pager.placment: unknown key; did you mean 'placement'?"),
        (b"", "name: missing"),
    ],
)
def test_a_users_file_that_is_wrong_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_policy(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_hardware(tmp_path)
