"""How large the replica is that calibration and validation run: slots, blocks, limit, pool, and what a policy becomes.

`smoke` is for a CPU and a small model: a step takes about a millisecond, so six policies at three loads take minutes.
`device` is for an accelerator. Both change sizes only, with one exception, said in every report: a policy with
piecewise mixed steps runs them kernel by kernel, because the device's executor has no piecewise graphs. What far
history keeps is divided as lengths are; a host pool holds at most `HOST_POOLS` times the device's blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvrm_sim.config import HardwareProfile, ModelSpec, Policy, ReplicaConfig, load_policy
from kvrm_sim.errors import ConfigError
from kvrm_sim.memory import GIB, plan_memory
from kvrm_sim.tables import guess

#: How many times the device's pool a host pool holds at most: a policy's own may be hundreds of GiB.
HOST_POOLS = 2

#: The presets that the device executes, in the order of every report.
POLICIES = ("static", "bucketed", "dynamic", "graph-paged", "kv-rm", "kv-rm-delta")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Sizes of the replica, and by how much a trace's prompts and outputs are divided."""

    name: str
    slots: int
    block_size_tokens: int
    limit_tokens: int
    token_budget: int
    pool_blocks: int
    length_divisor: int

    def policy(self, name: str) -> Policy:
        """A preset at this scale."""
        preset = load_policy(name)
        changes: dict[str, object] = {
            "schedule.slots": self.slots,
            "pager.block_size_tokens": self.block_size_tokens,
            "schedule.token_budget": self.token_budget,
        }
        if runs_mixed_steps_eagerly(name):
            changes["launch.mixed"] = "eager"
        far = preset.far_history
        if far is not None:
            summary_tokens = far.summary_blocks * preset.pager.block_size_tokens
            changes["far_history.window_tokens"] = self._blocks(far.window_tokens) * self.block_size_tokens
            changes["far_history.summary_blocks"] = self._blocks(summary_tokens)
        return preset.override(changes)

    def _blocks(self, tokens: int) -> int:
        """Whole blocks of this scale that hold a length divided as a trace's lengths are."""
        return -(-tokens // (self.length_divisor * self.block_size_tokens))

    def config(
        self, policy: str, model: ModelSpec, hardware: HardwareProfile, *, pool_blocks: int | None = None, seed: int = 0
    ) -> ReplicaConfig:
        """A replica of this scale. ``pool_blocks``: another pool than the scale's."""
        config = ReplicaConfig(
            model=model,
            hardware=hardware,
            policy=self.policy(policy),
            pool_blocks=pool_blocks or self.pool_blocks,
            max_context_tokens=min(self.limit_tokens, model.max_context_tokens),
            window_s=0.0,
            seed=seed,
        )
        return self._with_host(config)

    @staticmethod
    def _with_host(config: ReplicaConfig) -> ReplicaConfig:
        """With a host pool of this scale, where the policy has a larger one."""
        plan = plan_memory(config)
        most = HOST_POOLS * plan.pool_blocks
        if plan.host_blocks <= most:
            return config
        # Half a block more: what is computed from the size again is rounded down.
        policy = config.policy.override({"host.memory_gib": (most + 0.5) * plan.block_bytes / GIB})
        return config.model_copy(update={"policy": policy})


def runs_mixed_steps_eagerly(policy: str) -> bool:
    """Whether a preset has piecewise mixed steps, which the device does not."""
    launch = load_policy(policy).launch
    return launch.mode == "graph" and launch.mixed == "piecewise"


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="smoke",
            slots=16,
            block_size_tokens=16,
            limit_tokens=256,
            token_budget=128,
            pool_blocks=96,
            length_divisor=16,
        ),
        Scale(
            name="device",
            slots=64,
            block_size_tokens=16,
            limit_tokens=4096,
            token_budget=2048,
            pool_blocks=6144,
            length_divisor=1,
        ),
    )
}


def scale_for(scale: str | Scale | None, backend: str) -> Scale:
    """A scale as it is, by its name, or by default: ``smoke`` on the CPU, ``device`` elsewhere.

    Raises ConfigError with the known names.
    """
    if isinstance(scale, Scale):
        return scale
    name = scale or ("smoke" if backend == "cpu" else "device")
    if name not in SCALES:
        message = f"scale {name!r} is unknown{guess(name, SCALES)} (known: {', '.join(SCALES)})"
        raise ConfigError(message, "scale", name)
    return SCALES[name]
