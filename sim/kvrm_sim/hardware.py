"""HardwareProfile: what a device costs, coefficient by coefficient, each with a provenance and a source.

Units are in the keys. ``docs/hardware.md`` says what each coefficient multiplies. A few are optional: only what copies
to the host or maps memory needs them. Left out: clocks under load, contention with other jobs, NUMA effects. A profile
is *calibrated* only when every coefficient was measured on the machine itself.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kvrm_sim.errors import ConfigError
from kvrm_sim.tables import PositiveFloat, Table

#: `assumed` is kvrm's own estimate, where nothing was published; its source says what it rests on.
Provenance: TypeAlias = Literal["measured", "published", "datasheet", "assumed"]


def _finite_positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("should be a number")
    if not math.isfinite(value) or value <= 0:
        raise ValueError("should be a finite number above 0")
    return float(value)


class Coefficient(BaseModel):
    """A value in the unit of its key, where it comes from, and the address or command that gave it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Annotated[float, BeforeValidator(_finite_positive)]
    provenance: Provenance
    source: str = Field(min_length=1)


class HardwareProfile(Table):
    """One device with its host and links. There is no default for a cost: what steps need is required, and what is
    optional is absent until it is given.
    """

    section: ClassVar[str] = "hardware"

    name: str = Field(min_length=1)
    description: str = ""
    #: What fixed pieces of work took when the profile was measured. They cost nothing: `kvrm validate` compares with
    #: them how fast a shared machine is just now.
    yardsticks_ns: dict[str, PositiveFloat] | None = None

    # memory, compute and links
    memory_bytes: Coefficient
    hbm_bytes_per_s: Coefficient
    dense_flops_per_s: Coefficient
    h2d_bytes_per_s: Coefficient
    h2d_peak_bytes_per_s: Coefficient
    d2d_bytes_per_s: Coefficient
    peer_bytes_per_s: Coefficient
    peer_peak_bytes_per_s: Coefficient
    peer_latency_ns: Coefficient
    # shares of the peaks that kernels reach
    dense_flops_efficiency: Coefficient
    weight_read_efficiency: Coefficient
    attention_contiguous_efficiency: Coefficient
    attention_table_efficiency: Coefficient
    attention_flops_efficiency: Coefficient
    # what attention is given besides the tokens that it attends to
    store_bytes_per_s: Coefficient
    idle_read_share: Coefficient
    # host and commit
    host_step_ns: Coefficient
    host_row_ns: Coefficient
    host_chunk_ns: Coefficient
    host_block_ns: Coefficient
    host_group_ns: Coefficient
    commit_call_ns: Coefficient
    # launch
    kernel_launch_ns: Coefficient
    first_launch_ns: Coefficient
    mixed_launch_ns: Coefficient
    graph_replay_ns: Coefficient
    graph_node_gap_ns: Coefficient
    graph_capture_ns: Coefficient
    graph_bytes: Coefficient
    kernels_per_layer: Coefficient
    kernels_per_step: Coefficient
    # copies
    copy_call_ns: Coefficient
    copy_descriptor_ns: Coefficient
    batch_call_ns: Coefficient
    transfer_kernel_ns: Coefficient
    copy_segment_ns: Coefficient
    # optional: copies to the host, both ways at once, and mapping pages of virtual memory
    d2h_bytes_per_s: Coefficient | None = None
    duplex_h2d_slowdown: Coefficient | None = None
    duplex_d2h_slowdown: Coefficient | None = None
    map_page_ns: Coefficient | None = None
    map_small_page_ns: Coefficient | None = None

    @model_validator(mode="after")
    def _physical(self) -> HardwareProfile:
        for name, value in self.values().items():
            if name.endswith(("_efficiency", "_share")) and value > 1:
                whole = "the peak" if name.endswith("_efficiency") else "the whole"
                raise ValueError(f"hardware.{name} = {value:g}: a share of {whole} should be above 0 and at most 1")
            if name.endswith("_slowdown") and value < 1:
                raise ValueError(f"hardware.{name} = {value:g}: how many times longer should be 1 or more")
        half = "half of hardware.hbm_bytes_per_s: a copied byte is read and written"
        peaks = (
            ("h2d_bytes_per_s", self.h2d_peak_bytes_per_s.value, "the link's peak, hardware.h2d_peak_bytes_per_s"),
            ("d2h_bytes_per_s", self.h2d_peak_bytes_per_s.value, "the link's peak, hardware.h2d_peak_bytes_per_s"),
            ("peer_bytes_per_s", self.peer_peak_bytes_per_s.value, "the link's peak, hardware.peer_peak_bytes_per_s"),
            ("d2d_bytes_per_s", self.hbm_bytes_per_s.value / 2, half),
            ("store_bytes_per_s", self.hbm_bytes_per_s.value / 2, half),
        )
        for name, peak, what in peaks:
            given: Coefficient | None = getattr(self, name)
            if given is not None and (value := given.value) > peak:
                raise ValueError(f"hardware.{name} = {value:g} is above {peak:g}, {what}")
        return self

    @classmethod
    def required_names(cls) -> tuple[str, ...]:
        """The keys of the coefficients that every profile has, in its order."""
        return tuple(name for name, field in cls.model_fields.items() if field.annotation is Coefficient)

    @classmethod
    def optional_names(cls) -> tuple[str, ...]:
        """The keys of the coefficients that a profile may lack."""
        optional = Coefficient | None
        return tuple(name for name, field in cls.model_fields.items() if field.annotation == optional)

    def coefficient_names(self) -> tuple[str, ...]:
        """The keys of all coefficients of this profile: the required ones, then the optional ones that are set."""
        return self.required_names() + tuple(name for name in self.optional_names() if getattr(self, name) is not None)

    def coefficients(self) -> dict[str, Coefficient]:
        """Every coefficient that is set, by its key."""
        return {name: getattr(self, name) for name in self.coefficient_names()}

    def value(self, name: str) -> float:
        """One coefficient's value, in the unit of its key. Raises ConfigError for an optional one that is not set."""
        coefficient: Coefficient | None = getattr(self, name)
        if coefficient is None:
            message = f"hardware.{name}: the profile {self.name!r} does not give it, and it has no default"
            raise ConfigError(message, f"hardware.{name}")
        return coefficient.value

    def values(self) -> dict[str, float]:
        """The value of every coefficient that is set, by its key."""
        return {name: coefficient.value for name, coefficient in self.coefficients().items()}

    @property
    def calibrated(self) -> bool:
        """Every coefficient that is set was measured; otherwise each result says ``uncalibrated``."""
        return all(coefficient.provenance == "measured" for coefficient in self.coefficients().values())
