"""ReplicaConfig: everything that decides what one replica does, as one frozen object that reads and writes TOML.

``run.toml`` of a run holds this object and what it was run on (provenance.py); the same TOML and trace give the same
run. The parts live in their own files and are exported here: ``policy.py``, ``model.py``, ``hardware.py``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from kvrm_sim.errors import ConfigError
from kvrm_sim.hardware import Coefficient, HardwareProfile
from kvrm_sim.model import ModelSpec
from kvrm_sim.policy import Policy
from kvrm_sim.policy_parts import Launch, Pager, Read, Reserve, Schedule, Transport
from kvrm_sim.registry import (
    hardware_names,
    load_hardware,
    load_model,
    load_policy,
    model_names,
    policy_names,
)
from kvrm_sim.tables import PositiveInt, Table, parse_toml, prefixed, read_toml

__all__ = [
    "Coefficient",
    "HardwareProfile",
    "Launch",
    "ModelSpec",
    "OverLimit",
    "Pager",
    "Policy",
    "Read",
    "ReplicaConfig",
    "Reserve",
    "Schedule",
    "Transport",
    "config_hash",
    "hardware_names",
    "load_hardware",
    "load_model",
    "load_policy",
    "model_names",
    "policy_names",
]

OverLimit: TypeAlias = Literal["reject", "truncate", "error"]


class ReplicaConfig(Table):
    """One engine with its pool, on ``tensor_parallel`` devices."""

    section: ClassVar[str] = ""

    tensor_parallel: PositiveInt = 1
    #: Share of device memory that may be used; the rest is headroom.
    memory_utilisation: Annotated[StrictFloat, Field(gt=0, le=1, allow_inf_nan=False)] = 0.9
    #: A smaller limit than the model's own.
    max_context_tokens: PositiveInt | None = None
    #: What becomes of a request whose prompt and output exceed the limit.
    over_limit: OverLimit = "reject"
    #: A smaller pool than memory allows, for studies.
    pool_blocks: PositiveInt | None = None
    #: KV bytes of a token on one device, instead of the model's formula (latent attention, hybrid layers).
    kv_bytes_per_token: PositiveInt | None = None
    #: Length of a window in steps.parquet; 0 keeps one record a step.
    window_s: Annotated[StrictFloat, Field(ge=0, le=1e9, allow_inf_nan=False)] = 1.0
    #: Check the invariants after every step.
    check: StrictBool = False
    seed: Annotated[StrictInt, Field(ge=0)] = 0
    model: ModelSpec
    hardware: HardwareProfile
    policy: Policy

    @model_validator(mode="after")
    def _agrees(self) -> ReplicaConfig:
        if self.max_context_tokens is not None and self.max_context_tokens > self.model.max_context_tokens:
            raise ValueError(
                f"max_context_tokens = {self.max_context_tokens} is above the limit of model {self.model.name!r}, "
                f"{self.model.max_context_tokens}"
            )
        self.model.check_tensor_parallel(self.tensor_parallel)
        if self.policy.pager.mapping == "virtual":
            # The block is a page of one layer's keys (or values): its size follows from the model.
            object.__setattr__(self, "policy", self._paged_by_the_page())
        layers = self.model.layers
        if self.kv_bytes_per_token is not None and self.policy.staged and self.kv_bytes_per_token % layers:
            raise ValueError(
                f"kv_bytes_per_token = {self.kv_bytes_per_token} is not a multiple of model.layers = {layers}, "
                "and staging holds whole layers"
            )
        return self

    @classmethod
    def from_names(cls, policy: str | Path, model: str | Path, hardware: str | Path, **settings: Any) -> Self:
        """Build from preset names or TOML paths; ``settings`` are the other fields."""
        return cls(policy=load_policy(policy), model=load_model(model), hardware=load_hardware(hardware), **settings)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a whole configuration from a TOML file; the [trace] and [run] of a run.toml are passed over."""
        source = str(path)
        values = parse_toml(read_toml(Path(path)), source)
        try:
            return cls.from_dict({key: value for key, value in values.items() if key not in ("trace", "run")})
        except ConfigError as error:
            raise prefixed(error, source) from None

    def _paged_by_the_page(self) -> Policy:
        pager, entry = self.policy.pager, self.rank_kv_bytes_per_token // (2 * self.model.layers)
        page = pager.page_kib * 1024
        if entry < 1 or page < entry:
            raise ValueError(
                f"pager.page_kib = {pager.page_kib}: a page holds no token of one layer's keys, which are "
                f"{entry} bytes each on one device"
            )
        tokens = page // entry
        if pager.block_size_tokens not in (type(pager).model_fields["block_size_tokens"].default, tokens):
            raise ValueError(
                f"policy {self.policy.name!r}: pager.block_size_tokens = {pager.block_size_tokens} has no effect with "
                f'pager.mapping = "virtual": the block is a page, and with pager.page_kib = {pager.page_kib} one holds '
                f"{tokens} tokens of model {self.model.name!r}; leave it out, or set pager.page_kib"
            )
        return self.policy.override({"pager.block_size_tokens": tokens})

    def _given(self) -> dict[str, Any]:
        values = super()._given()
        if self.policy.pager.mapping == "virtual":
            del values["policy"]["pager"]["block_size_tokens"]
        return values

    @property
    def limit_tokens(self) -> int:
        """The longest prompt and output together that is served."""
        return self.max_context_tokens or self.model.max_context_tokens

    @property
    def rank_kv_bytes_per_token(self) -> int:
        """KV bytes of one token on one device."""
        return self.kv_bytes_per_token or self.model.kv_bytes_per_token(self.tensor_parallel)


def config_hash(config: Table) -> str:
    """The sha256 of a configuration's values, in hex: equal for equal ones, whatever their file looked like."""
    text = json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
