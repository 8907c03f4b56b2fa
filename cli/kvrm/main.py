"""The ``kvrm`` command: its commands put together, and every failure turned into one line and an exit code.

Exit codes: 0 done; 1 the work failed; 2 the input or the arguments are wrong. Only light modules are imported here:
what a command needs, it imports when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kvrm.commands import capacity, device, difference, explanation, figures, listing, reports, run, studies, trace
from kvrm.console import complain, say
from kvrm.flags import expanded

if TYPE_CHECKING:
    from kvrm_traces.errors import KvrmError

WORK_FAILED, WRONG_INPUT = 1, 2


class _InterruptedError(Exception):
    """Ctrl-C, under a name that typer does not turn into an exit code of its own."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _InterruptedError from None

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        for each in [command, *getattr(command, "commands", {}).values()]:
            _show_values(each, ctx)
        return command


def _show_values(command: Any, ctx: Any) -> None:
    """In the help a flag takes no value, and an option that is repeatable one at a time."""
    for option in [] if command is None else [*command.params, command.get_help_option(ctx)]:
        if getattr(option, "is_flag", False):
            option.metavar = ""
        elif option.metavar is None and option.param_type_name == "option":
            shown = option.display_type(ctx) or ""
            option.metavar = shown.replace("list[", "").replace("]", "") if "list[" in shown else None


app = typer.Typer(
    cls=_Commands,
    name="kvrm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Replay LLM serving traces under static-graph, dynamic and KV-RM decoders, and measure what each one costs.",
)
app.command("replay")(expanded(run.replay))
app.command("compare")(expanded(run.compare))
app.command("capacity")(expanded(capacity.capacity))
app.command("sweep")(studies.sweep)
app.command("tune")(studies.tune)
app.command("sensitivity")(studies.sensitivity)
app.command("calibrate")(device.calibrate)
app.command("validate")(device.validate)
app.command("plot")(expanded(figures.plot))
app.command("diff")(difference.diff)
app.command("explain")(explanation.explain)
app.command("report")(expanded(reports.report))
app.command("timeline")(expanded(reports.timeline))
app.command("list")(listing.list_names)
app.add_typer(trace.app, name="trace")


def _print_version(wanted: bool) -> None:
    if wanted:
        from kvrm import __version__

        say(f"kvrm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; failures are reported on stderr."""
    try:
        code = app(list(arguments), prog_name="kvrm", standalone_mode=False)
    except typer.TyperException as error:  # a usage error: 2
        _report_usage(error)
        return error.exit_code
    except _InterruptedError:
        complain("interrupted: nothing was written")
        return WORK_FAILED
    except _our_errors() as error:
        complain(str(error))
        return error.exit_code
    except OSError as error:
        complain(": ".join(part for part in (error.filename, error.strerror or str(error)) if part))
        return WORK_FAILED
    return code if isinstance(code, int) else 0


def _report_usage(error: typer.TyperException) -> None:
    """One line; none when the help was printed instead, as for ``kvrm`` alone."""
    text = " ".join(error.format_message().replace("Value error, ", "").split())
    if text:
        complain(_in_our_words(text, error.__cause__))


def _in_our_words(text: str, cause: BaseException | None) -> str:
    """A message that names the option, with the value and what would be right where an option takes a number."""
    from pydantic import ValidationError  # typer has it by now

    if not isinstance(cause, ValidationError):
        return text
    first = cause.errors()[0]
    wanted = {"int": "a whole number", "float": "a number"}.get(first["type"].partition("_")[0])
    return text if wanted is None else text.replace(first["msg"], f"{first['input']!r}: should be {wanted}")


def _our_errors() -> type[KvrmError]:
    """The root of our errors. Evaluated only when something was raised, so ``--help`` never pays the import."""
    from kvrm_traces.errors import KvrmError

    return KvrmError


def main() -> None:
    """Entry point of the ``kvrm`` command."""
    sys.exit(run_command(sys.argv[1:]))
