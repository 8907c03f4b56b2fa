"""Model presets against their published sizes; KV bytes and weights over ranks."""

from __future__ import annotations

import pytest

from kvrm_sim.errors import ConfigError
from kvrm_sim.registry import load_model, model_names

# What the checkpoints hold, as published with them.
PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "opt-13b": 12_853_473_280,
    "qwen2.5-7b": 7_615_616_512,
    "mistral-7b-v0.3": 7_248_023_552,
}
LIMITS = {
    "llama-3-8b": 8192,
    "llama-3.1-8b": 131072,
    "llama-2-7b": 4096,
    "llama-2-13b": 4096,
    "llama-3-70b": 8192,
    "llama-3.2-1b": 131072,
    "opt-13b": 2048,
    "qwen2.5-7b": 131072,
    "mistral-7b-v0.3": 32768,
}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_sizes_add_up_to_the_published_number_of_parameters(name: str) -> None:
    model = load_model(name)
    assert model.parameters == PARAMETERS[name]
    assert model.max_context_tokens == LIMITS[name]
    assert model.source.startswith("https://")


def test_every_preset_is_checked_here() -> None:
    assert {*PARAMETERS, "tiny-llama"} == set(model_names())


def test_kv_bytes_of_a_token() -> None:
    llama = load_model("llama-3-8b")
    assert llama.kv_bytes_per_token() == 32 * 2 * 8 * 128 * 2 == 131072
    assert llama.kv_bytes_per_token(2) == 65536
    assert llama.kv_bytes_per_token(8) == 16384
    # More ranks than heads: each holds one head, replicated.
    assert llama.kv_bytes_per_token(16) == llama.kv_bytes_per_token(32) == 16384
    assert load_model("opt-13b").kv_bytes_per_token() == 40 * 2 * 40 * 128 * 2


def test_the_kv_dtype_counts_not_the_weights() -> None:
    narrow = load_model("llama-3-8b").override({"kv_dtype": "float8"})
    assert narrow.kv_bytes_per_token() == 65536
    assert narrow.dtype_bytes == 2


@pytest.mark.parametrize(
    ("name", "degree", "problem"),
    [
        ("llama-3-8b", 3, "heads = 32"),
        ("llama-3-8b", 64, "heads = 32"),
        ("qwen2.5-7b", 14, "intermediate_size = 18944"),
        ("qwen2.5-7b", 8, "heads = 28"),
        ("llama-2-13b", 16, "heads = 40"),
    ],
)
def test_a_degree_that_does_not_divide_is_refused(name: str, degree: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_model(name).kv_bytes_per_token(degree)
    assert caught.value.key == "tensor_parallel"
    assert caught.value.value == degree


def test_kv_heads_and_degree_should_divide_one_another() -> None:
    odd = load_model("llama-3-8b").override({"heads": 24, "kv_heads": 6, "intermediate_size": 14400})
    with pytest.raises(ConfigError, match="kv_heads = 6"):
        odd.kv_bytes_per_token(4)
    assert odd.rank_kv_heads(12) == 1


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_ranks_together_hold_the_model_and_what_is_replicated(degree: int) -> None:
    model = load_model("llama-3-70b")
    total = sum(model.rank_parameters(degree, rank) for rank in range(degree))
    norms = model.hidden_size * (2 * model.layers + 1)
    assert total == model.parameters + (degree - 1) * norms


def test_an_uneven_vocabulary_makes_the_first_ranks_larger() -> None:
    model = load_model("tiny-llama").override({"vocab_size": 513})
    first, last = model.rank_parameters(2, 0), model.rank_parameters(2, 1)
    assert first - last == 2 * model.hidden_size


def test_a_sliding_window_is_refused_as_not_modelled() -> None:
    with pytest.raises(ConfigError, match=r"sliding_window_tokens = 4096: sliding windows are not modelled"):
        load_model("mistral-7b-v0.3").override({"sliding_window_tokens": 4096})


def test_heads_should_be_a_multiple_of_kv_heads() -> None:
    with pytest.raises(ConfigError, match=r"model.heads = 32 should be a multiple of model.kv_heads = 5"):
        load_model("llama-3-8b").override({"kv_heads": 5})
