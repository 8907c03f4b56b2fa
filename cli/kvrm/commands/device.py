"""``kvrm calibrate`` and ``kvrm validate``: the commands that run on a device."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from kvrm import device as public
from kvrm.console import complain, note, progress_line, say
from kvrm.device_text import calibration_text, steps_text, validation_text
from kvrm.flags import PluginOption

DEFAULT_MODEL = "tiny-llama"

DeviceOption = Annotated[
    Literal["auto", "cuda", "cpu"] | None,
    typer.Option("--device", help="Where to run: auto (the default) is CUDA where torch finds it, else the CPU."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help=f"A name of `kvrm list models` or a TOML file (default {DEFAULT_MODEL}).")
]
ScaleOption = Annotated[
    str | None,
    typer.Option(
        "--scale",
        metavar="smoke|device",
        help="Size of the replica: smoke (the default on a CPU) or device (the default on CUDA).",
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of weights and prompts (default 0).")]
ReportOption = Annotated[
    str | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for report, step times and figures.")
]
RangesOption = Annotated[
    bool, typer.Option("--ranges", help="Name the parts of each step to a profiler: NVTX on CUDA, torch.profiler else.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the machine-readable report, alone.")]


def calibrate(
    *,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="PROFILE.toml", help="Profile to write; raw table and page of figures go beside it."
        ),
    ],
    device: DeviceOption = None,
    model: ModelOption = None,
    scale: ScaleOption = None,
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", help=f"Repeats of whole steps (default {public.CALIBRATION_REPEATS})."),
    ] = None,
    seed: SeedOption = None,
    from_steps: Annotated[
        str | None,
        typer.Option(
            "--from-steps",
            metavar="STEPS.csv",
            help="Fit to an engine's own log instead (columns rows, tokens, context_sum, ms); nothing is measured.",
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            metavar="BASE",
            help="With --from-steps: the profile to start from, a name of `kvrm list hardware` or a TOML file.",
        ),
    ] = None,
    json: JsonOption = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files when they exist.")] = False,
) -> None:
    """Measure this machine and write its hardware profile.

    PROFILE.toml, for --hardware: every coefficient measured.
    PROFILE.parquet: every measured size.
    PROFILE.svg: measured points, fitted lines, errors.

    With --from-steps only PROFILE.toml: what the log tells, the rest from BASE.
    Needs the extra `gpu`. Details: docs/validation.md.
    """
    measuring = {"--device": device, "--scale": scale, "--repeats": repeats, "--seed": seed}
    if from_steps is not None:
        _refuse_ignored(measuring, "nothing is measured with --from-steps")
        _fit_log(from_steps, hardware, model, out, json=json, force=force)
        return
    _refuse_ignored({"--hardware": hardware}, "a measured profile starts from none; it is for --from-steps")
    with progress_line() as progress:
        done = public.calibrate(
            device or "auto",
            model or DEFAULT_MODEL,
            out=out,
            force=force,
            scale=scale,
            repeats=public.CALIBRATION_REPEATS if repeats is None else repeats,
            seed=seed or 0,
            progress=progress,
        )
    profile, table, page = public.calibration_files(out)
    _print(done.report, calibration_text, json=json)
    where = note if json else say
    where(f"profile: {profile}")
    where(f"raw table: {table}")
    where(f"figures: {page}")


def validate(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a name of `kvrm list traces`.")],
    *,
    hardware: Annotated[
        str, typer.Option("--hardware", help="Profile to validate: the TOML file that `kvrm calibrate` wrote here.")
    ],
    device: DeviceOption = None,
    model: ModelOption = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="Policy, repeatable (default: the six presets that are calibrated)."),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(
            "--load",
            metavar="SHARE",
            help="Arrival rate as a share of what the policy can serve, repeatable "
            f"(default {', '.join(f'{load:g}' for load in public.DEFAULT_LOADS)}).",
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", help="Requests of the trace to execute.")] = public.DEFAULT_ROWS,
    repeats: Annotated[int, typer.Option("--repeats", help="Repeats of every run.")] = public.VALIDATION_REPEATS,
    scale: ScaleOption = None,
    seed: SeedOption = None,
    plugin: PluginOption = None,
    out: ReportOption = None,
    ranges: RangesOption = False,
    json: JsonOption = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote there.")] = False,
) -> None:
    """Simulate a trace, execute it, and compare decisions, tokens and times.

    Lockstep: each step is executed as the simulator planned it, at saturation.
    Closed loop: measured times drive the clock, at each --load.
    Each error stands beside the spread of repeats. Exit code 1: what fails is named.

    Needs the extra `gpu`. A trace that needs options to be read is first made
    Parquet by `kvrm trace convert`. Details: docs/validation.md.
    """
    if force and out is None:
        raise typer.BadParameter("there is nothing to replace without --out", param_hint="--force")
    with progress_line() as progress:
        done = public.validate(
            trace,
            hardware,
            model or DEFAULT_MODEL,
            device=device or "auto",
            policies=policy,
            loads=load or public.DEFAULT_LOADS,
            out=out,
            force=force,
            scale=scale,
            rows=rows,
            repeats=repeats,
            seed=seed or 0,
            progress=progress,
            ranges=ranges,
            plugins=plugin or (),
        )
    _print(done.report, validation_text, json=json)
    where = note if json else say
    for missed in done.missed:
        where(f"above its goal: {missed}")
    if done.folder is not None:
        where(f"results: {done.folder}")
    for failure in done.failures:
        complain(f"validation failed: {failure}")
    if done.failures:
        raise typer.Exit(1)


def _fit_log(log: str, hardware: str | None, model: str | None, out: str, *, json: bool, force: bool) -> None:
    if hardware is None or model is None:
        raise typer.BadParameter(
            "also needs --hardware, the profile to start from, and --model, what the engine ran",
            param_hint="--from-steps",
        )
    done = public.calibrate_from_steps(log, model, hardware, out=out, force=force)
    _print(done.report, steps_text, json=json)
    (note if json else say)(f"profile: {out}")


def _refuse_ignored(options: dict[str, Any], why: str) -> None:
    for name, given in options.items():
        if given is not None:
            raise typer.BadParameter(why, param_hint=name)


def _print(report: dict[str, Any], text: Callable[[dict[str, Any]], str], *, json: bool) -> None:
    say(json_text.dumps(report, indent=2, allow_nan=False) if json else text(report))
