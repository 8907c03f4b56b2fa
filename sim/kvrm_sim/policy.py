"""A policy: the table of independent parts of DESIGN section 5, in a combination that can work."""

from __future__ import annotations

from pydantic import model_validator

from kvrm_sim.combinations import refusal
from kvrm_sim.policy_parts import PolicyParts


class Policy(PolicyParts):
    """One decoder: how it reserves, launches, reads, moves, pages and schedules. Presets: ``load_policy``."""

    @model_validator(mode="after")
    def _combination(self) -> Policy:
        reason = refusal(self)
        if reason is not None:
            raise ValueError(f"policy {self.name!r}: {reason}")
        return self
