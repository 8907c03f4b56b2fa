"""The options of a run into what is run: the configuration of a replica, and whether there is one or a cluster.

Shared by the verbs of the package ``kvrm`` and by the cells of a study, so that the same options mean the same run.
Light: what a function needs of the simulator, it imports when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

    from kvrm_sim.config import ReplicaConfig
    from kvrm_sim.policy import Policy
    from kvrm_sim.result import RunResult
    from kvrm_traces import Trace

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_HARDWARE = "a100-80gb-sxm"

#: Keys that only say how prompts are computed: a policy with one of them and no prefill is refused as meaningless.
ABOUT_PREFILL = ("launch.mixed", "launch.token_sizes", "schedule.token_budget")

#: Both or none of them.
SPLIT = ("prefill_replicas", "decode_replicas")
#: Options of several replicas behind a router.
OF_A_CLUSTER = ("cluster", *SPLIT, "router", "prefix_weight")
#: Where the replicas of a cluster run when they run apart; no result depends on it.
OF_AN_ENGINE = ("engine", "workers", "address")


def replica_config(policy: str | Path | Policy, options: Mapping[str, Any]) -> ReplicaConfig:
    """The configuration of one replica. Raises ConfigError, with the nearest known name for an unknown one.

    ``options``: fields of ReplicaConfig; ``model`` and ``hardware`` as a name, a file or the object; ``prefill``, and
    ``overrides`` of the policy by dotted key.
    """
    from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy

    rest: dict[str, Any] = dict(options)
    overrides = {**_prefill_overrides(rest.pop("prefill", None)), **rest.pop("overrides", {})}
    model = rest.pop("model", DEFAULT_MODEL)
    hardware = rest.pop("hardware", DEFAULT_HARDWARE)
    chosen = load_policy(policy) if isinstance(policy, (str, Path)) else policy
    return ReplicaConfig(
        policy=changed(chosen, overrides) if overrides else chosen,
        model=load_model(model) if isinstance(model, (str, Path)) else model,
        hardware=load_hardware(hardware) if isinstance(hardware, (str, Path)) else hardware,
        **rest,
    )


def changed(policy: Policy, overrides: Mapping[str, Any]) -> Policy:
    """The policy with keys replaced. What it sets itself and the change makes meaningless is named, with a way out."""
    from kvrm_sim.errors import ConfigError

    try:
        return policy.override(overrides)
    except ConfigError as error:
        own = [key for key in _own_keys(policy) if key not in overrides and f"{key} = " in error.message]
        if not own:
            raise
        unset = " ".join(f"--set {key}=" for key in own)
        hint = f"policy {policy.name!r} itself sets {', '.join(own)}: unset with {unset} (from Python, with None)"
        raise ConfigError(f"{error.message}; {hint}", error.key, error.value) from None


def _own_keys(table: BaseModel, section: str = "") -> list[str]:
    """The dotted keys that are not at their defaults, and have one to go back to."""
    from pydantic import BaseModel

    found: list[str] = []
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, BaseModel):
            found += _own_keys(value, f"{section}{name}.")
        elif not field.is_required() and value != field.get_default(call_default_factory=True):
            found.append(f"{section}{name}")
    return found


def _prefill_overrides(prefill: str | None) -> dict[str, Any]:
    """What ``prefill`` changes in every policy. None in the result removes a key, so that its default holds."""
    if prefill is None:
        return {}
    without = dict.fromkeys(ABOUT_PREFILL) if prefill == "none" else {}
    return {"schedule.prefill": prefill, **without}


def is_one_replica(options: Mapping[str, Any]) -> bool:
    """Nothing asks for more."""
    return all(options.get(name) is None for name in ("cluster", *SPLIT))


def check_cluster(
    options: Mapping[str, Any], driver: str, trace: Trace | None = None, configs: Sequence[ReplicaConfig] = ()
) -> None:
    """Raise InputError for options of a cluster that do not fit each other, the trace, or a policy.

    Nothing is looked at that is not given: a command checks its own line before it reads the trace.
    """
    from kvrm_traces.errors import InputError

    given = {name: value for name, value in options.items() if value is not None}
    split = [given[name] for name in SPLIT if name in given]
    if is_one_replica(options):
        for name, value in given.items():
            nothing = "is one process" if name in OF_AN_ENGINE else "has nothing to route"
            raise InputError(f"{name} = {value!r}: one replica {nothing}; pass cluster = N as well")
        return
    if split and "cluster" in given:
        raise InputError("cluster: its replicas do both prefill and decode; pass it or prefill_replicas, not both")
    if len(split) == 1:
        raise InputError("prefill_replicas and decode_replicas: one needs the other; pass both")
    if driver != "span":
        raise InputError(f"driver = {driver!r}: a cluster runs with driver 'span'")
    _check_engine(given, apart=not split)
    from kvrm_sim.cluster import check_cluster as check
    from kvrm_sim.split import check_split
    from kvrm_sim.words import DEFAULT_ROUTER

    count = given.get("cluster", 1)
    for config in configs or (None,):
        check(count, given.get("router", DEFAULT_ROUTER), given.get("prefix_weight"), trace, config)
        if split:
            check_split(config, *split)


def _check_engine(given: Mapping[str, Any], *, apart: bool) -> None:
    """Raise InputError for options of an engine that the replicas cannot have."""
    from kvrm_traces.errors import InputError

    for name in OF_AN_ENGINE:
        if name in given and "engine" not in given:
            raise InputError(f"{name} = {given[name]!r}: is of an engine; pass engine = 'local' or 'ray' as well")
        if name in given and not apart:
            raise InputError(f"{name} = {given[name]!r}: prefill and decode replicas meet: they run in one process")
    if "engine" in given:
        from kvrm_analysis.engines.shards import check_shards
        from kvrm_sim.words import DEFAULT_ROUTER

        check_shards(given.get("router", DEFAULT_ROUTER))


def run_replicas(trace: Trace, config: ReplicaConfig, options: Mapping[str, Any], **how: Any) -> RunResult:
    """Run one replica, a cluster (with ``engine``: its replicas apart), or split prefill from decode, as the options
    (checked) say. ``how``: as of ``engine.run``; ``driver`` only for one replica.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if is_one_replica(given):
        from kvrm_sim.engine import run

        return run(trace, config, **how)
    from kvrm_sim.cluster import run_cluster
    from kvrm_sim.split import run_split

    how.pop("driver", None)
    if "engine" in given:
        from kvrm_analysis.engines.named import engine_of
        from kvrm_analysis.engines.shards import run_sharded

        chosen, workers, address = (given.pop(name, None) for name in OF_AN_ENGINE)
        with engine_of(chosen, workers=workers, address=address) as engine:
            return run_sharded(trace, config, replicas=given.pop("cluster"), engine=engine, **given, **how)
    if "cluster" in given:
        return run_cluster(trace, config, replicas=given.pop("cluster"), **given, **how)
    return run_split(trace, config, **given, **how)
