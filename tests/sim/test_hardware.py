"""Hardware profiles: every coefficient with a provenance, none beyond the physics."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrm_sim.config import HardwareProfile
from kvrm_sim.errors import ConfigError
from kvrm_sim.registry import hardware_names, load_hardware


@pytest.mark.parametrize("name", hardware_names())
def test_presets_name_a_source_and_are_not_calibrated(name: str) -> None:
    profile = load_hardware(name)
    assert not profile.calibrated
    coefficients = profile.coefficients()
    assert set(coefficients) == {*HardwareProfile.required_names(), *HardwareProfile.optional_names()}
    for coefficient in coefficients.values():
        assert coefficient.provenance in ("datasheet", "published", "assumed")
        if coefficient.provenance == "datasheet":
            assert coefficient.source.startswith("https://")


@pytest.mark.parametrize("name", [*HardwareProfile.required_names(), *HardwareProfile.optional_names()])
def test_every_coefficient_is_explained_in_the_docs(name: str) -> None:
    assert f"`{name}`" in (Path(__file__).resolve().parents[2] / "docs" / "hardware.md").read_text()


def test_the_docs_count_what_is_assumed() -> None:
    text = " ".join((Path(__file__).resolve().parents[2] / "docs" / "hardware.md").read_text().split())
    found = {name: load_hardware(name).coefficients() for name in hardware_names()}
    assumed = {name: sum(one.provenance == "assumed" for one in own.values()) for name, own in found.items()}
    assert assumed["a100-40gb"] == assumed["a100-80gb-sxm"]
    counts = (
        f"{assumed['a100-40gb']} of an A100, {assumed['h100-80gb-sxm']} of the H100 and {assumed['h200']} of the H200"
    )
    assert f"Of their {len(found['h200'])} coefficients 4 are datasheet peaks; assumed are {counts}" in text


@pytest.mark.parametrize("name", hardware_names())
def test_presets_keep_the_order_of_a_memory_system(name: str) -> None:
    value = load_hardware(name).values()
    assert value["h2d_bytes_per_s"] < value["peer_bytes_per_s"] < value["d2d_bytes_per_s"] < value["hbm_bytes_per_s"]
    assert value["graph_replay_ns"] < value["kernel_launch_ns"] * value["kernels_per_layer"]


def test_calibrated_means_every_coefficient_was_measured() -> None:
    profile = load_hardware("h200")
    names = profile.coefficient_names()
    measured = profile.override({f"{name}.provenance": "measured" for name in names})
    assert measured.calibrated
    assert not measured.override({f"{names[-1]}.provenance": "assumed"}).calibrated


def test_a_profile_survives_toml() -> None:
    profile = load_hardware("a100-40gb")
    assert HardwareProfile.from_toml(profile.to_toml()) == profile


def test_a_bandwidth_above_the_links_peak_is_refused() -> None:
    """D09: 16 tokens of 131,072 bytes in 0.16 us imply 13,107 GB/s, above any host link; 51 GB/s on PCIe 5 is not."""
    implied = 16 * 131072 / 0.16e-6
    assert implied == pytest.approx(13_107e9, rel=1e-3)
    profile = load_hardware("h100-80gb-sxm")
    with pytest.raises(
        ConfigError, match=r"hardware\.h2d_bytes_per_s = 1\.3\d+e\+13 is above 6\.4e\+10, the link's peak"
    ):
        profile.override({"h2d_bytes_per_s.value": implied})
    assert profile.override({"h2d_bytes_per_s.value": 51e9}).value("h2d_bytes_per_s") == 51e9


def test_a_peer_bandwidth_above_the_links_peak_is_refused() -> None:
    """D09: the same rule for the link between devices."""
    with pytest.raises(ConfigError, match=r"hardware\.peer_peak_bytes_per_s"):
        load_hardware("h200").override({"peer_bytes_per_s.value": 900e9})


def test_a_payload_copy_is_at_most_half_of_the_memory_bandwidth() -> None:
    """D09: a copied byte is read and written, so the memory's bandwidth is no copy bandwidth."""
    profile = load_hardware("a100-80gb-sxm")
    half = profile.value("hbm_bytes_per_s") / 2
    assert profile.override({"d2d_bytes_per_s.value": half}).value("d2d_bytes_per_s") == half
    with pytest.raises(ConfigError, match="a copied byte is read and written"):
        profile.override({"d2d_bytes_per_s.value": half * 1.01})


@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("inf"), float("nan"), True, "50e9", None])
@pytest.mark.parametrize("name", ["h2d_bytes_per_s", "copy_call_ns", "graph_bytes"])
def test_a_coefficient_that_is_no_finite_positive_number_is_refused_by_name(name: str, value: object) -> None:
    """E10: validated where it enters, with the field's name; no default of 0, no division by it later."""
    with pytest.raises(ConfigError, match=rf"hardware\.{name}\.value"):
        load_hardware("h200").override({f"{name}.value": value})


@pytest.mark.parametrize("name", HardwareProfile.required_names())
def test_no_coefficient_has_a_default(name: str) -> None:
    """E10: an unset coefficient is an error that names it."""
    with pytest.raises(ConfigError, match=rf"hardware\.{name}: missing, and it has no default"):
        load_hardware("h200").override({name: None})


@pytest.mark.parametrize("name", HardwareProfile.optional_names())
def test_an_optional_coefficient_that_is_absent_has_no_default_either(name: str) -> None:
    """E10: who needs it is told so by name; nothing stands in for it."""
    full = load_hardware("h200")
    without = full.override({name: None})
    assert set(full.coefficient_names()) - set(without.coefficient_names()) == {name}
    assert name not in without.values()
    assert HardwareProfile.from_toml(without.to_toml()) == without
    with pytest.raises(ConfigError, match=rf"hardware\.{name}: the profile 'h200' does not give it"):
        without.value(name)


@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_a_copy_is_not_faster_while_another_runs_the_other_way(way: str) -> None:
    profile = load_hardware("h200")
    name = f"duplex_{way}_slowdown"
    assert profile.override({f"{name}.value": 1}).value(name) == 1
    with pytest.raises(ConfigError, match=rf"hardware\.{name} = 0\.9: how many times longer should be 1 or more"):
        profile.override({f"{name}.value": 0.9})


def test_a_copy_to_the_host_is_not_faster_than_its_link() -> None:
    with pytest.raises(ConfigError, match=r"hardware\.d2h_bytes_per_s = 7e\+10 is above 6\.4e\+10, the link's peak"):
        load_hardware("h200").override({"d2h_bytes_per_s.value": 7e10})


@pytest.mark.parametrize("name", [name for name in HardwareProfile.required_names() if name.endswith("efficiency")])
def test_an_efficiency_above_one_is_refused(name: str) -> None:
    profile = load_hardware("h200")
    assert profile.override({f"{name}.value": 1.0}).value(name) == 1.0
    with pytest.raises(ConfigError, match=rf"hardware\.{name} = 1\.01: a share of the peak"):
        profile.override({f"{name}.value": 1.01})


@pytest.mark.parametrize("name", ["host_row_ns", "map_page_ns"])
def test_an_unknown_key_of_a_coefficient_suggests_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"hardware\.{name}\.sorce: unknown key; did you mean 'source'\?"):
        load_hardware("h200").override({f"{name}.sorce": "x"})
