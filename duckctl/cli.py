"""The duckctl command line: joins the commands and maps every error to a message and an exit code.

Commands are loaded when they are used, so that ``duckctl --help`` stays fast and a command's
heavy imports cost nothing to the others.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

import duckctl
from duckctl.console import plain_lines, set_verbosity
from duckctl.errors import DuckError, ExitCode
from duckctl.process import signals_interrupt


@dataclass(frozen=True)
class CommandEntry:
    """One command: its name, the module that has it, and what the overview says about it."""

    name: str
    module: str
    summary: str


COMMANDS = (
    CommandEntry("demo", "demo", "Answer two prompts with a lab of ducks on this machine."),
    CommandEntry("init", "init", "Make the fleet's key pair."),
    CommandEntry("trust", "trust", "Show, accept and forget the ducks' own keys."),
    CommandEntry("inventory", "inventory", "Check and show an inventory."),
    CommandEntry("image", "image", "Build, show, check and sign the images that ducks boot."),
    CommandEntry("boot", "boot", "Serve network boot; say what each duck boots next."),
    CommandEntry("explain", "explain", "Say what a duck is answered at boot, and what it asked."),
    CommandEntry("lab", "lab", "A fleet on this machine: processes, or virtual boxes."),
    CommandEntry("shard-weights", "shard_weights", "Convert a model into one cache per duck."),
    CommandEntry("cache", "cache", "Look at and verify weight caches."),
    CommandEntry("serve", "serve", "Serve a model through an OpenAI-compatible API."),
    CommandEntry("chat", "chat", "Talk to a served model in the terminal."),
    CommandEntry("provision", "provision", "Bring ducks up: images, host, boot, verification."),
    CommandEntry(
        "reboot", "reboot", "Restart ducks, all or in turn, and wait until they are back."
    ),
    CommandEntry("status", "status", "Show the state of every duck."),
    CommandEntry("events", "events", "Show what happened to the ducks."),
    CommandEntry("wait", "wait", "Wait until ducks are ready or serving."),
    CommandEntry("discover", "discover", "List boxes that asked for an address."),
    CommandEntry("adopt", "adopt", "Enter a box into the inventory."),
    CommandEntry("maintenance", "maintenance", "Leave ducks alone while a person works on them."),
    CommandEntry("host", "host", "Set up the GPU machine by the playbooks, and compare it."),
    CommandEntry("doctor", "doctor", "Look at this host: what is not as a fleet needs it."),
    CommandEntry("health", "health", "Ask every duck how it is."),
    CommandEntry("power", "power", "Switch ducks on and off, or restart them by their switch."),
    CommandEntry("run", "run", "Run one kernel once on one duck, with a verdict."),
    CommandEntry("bench", "bench", "Measure kernels, transport and the whole."),
    CommandEntry("plan", "plan", "Predict what a fleet would give."),
)
# Global options are accepted behind the command too: `duckctl lab up --debug`.
GLOBAL_FLAGS = frozenset({"--debug", "--no-color", "--verbose", "-v", "-vv", "--quiet", "-q"})
DEBUG_HINT = "run again with --debug for the traceback"


def is_installed(entry: CommandEntry) -> bool:
    """True if the command's module is part of this installation."""
    return importlib.util.find_spec(f"duckctl.commands.{entry.module}") is not None


def _expand_home(app: typer.Typer) -> None:
    """Every path option takes `~`, in `--option=~/folder` too: shells leave that one alone."""
    for command in app.registered_commands:
        if command.callback is not None and not hasattr(command.callback, "__wrapped__"):
            command.callback = _with_home_expanded(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _expand_home(group.typer_instance)


def _with_home_expanded(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def call(**values: Any) -> Any:
        from pathlib import Path

        for name, value in values.items():
            if isinstance(value, Path):
                # As os.path has it, a `~name` that nobody has stays: then it is not there.
                values[name] = Path(os.path.expanduser(value))  # noqa: PTH111
        return callback(**values)

    return call


def _load(entry: CommandEntry) -> Any:
    """The click command of a command module: its only command, or a group of several."""
    app: typer.Typer = importlib.import_module(f"duckctl.commands.{entry.module}").app
    _expand_home(app)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.callback()(lambda: None)
    if app.registered_callback or app.registered_groups or len(app.registered_commands) > 1:
        holder.add_typer(app, name=entry.name, no_args_is_help=True)
    else:
        (command,) = app.registered_commands
        command.name = entry.name
        holder.registered_commands.append(command)
    group: Any = get_command(holder)
    return group.commands[entry.name]


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entry in COMMANDS if is_installed(entry)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for entry in COMMANDS:
            if entry.name == cmd_name and is_installed(entry):
                return _load(entry)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            nearest = difflib.get_close_matches(args[0], names, n=3)
            suggestion = f" Did you mean {', '.join(nearest)}?" if nearest else ""
            ctx.fail(f"There is no command '{args[0]}'.{suggestion}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(c.name, c.summary) for c in COMMANDS if is_installed(c)])


@dataclass
class Settings:
    """What the global options ask for; ``main`` reads it when it reports an error."""

    debug: bool = False


app = typer.Typer(
    cls=LazyGroup,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def build_hash() -> str:
    """The build hash of the native parts, as host and ducks compare it; empty without them."""
    for root in duckctl.__path__:
        path = os.path.join(root, "_native", "build-hash")  # noqa: PTH118 - pathlib not needed yet
        if os.path.exists(path):  # noqa: PTH110
            with open(path, encoding="ascii") as file:  # noqa: PTH123
                return file.read().strip()
    return ""


def _print_version(value: bool) -> None:
    if value:
        build = build_hash() or "none, the native parts are not installed"
        sys.stdout.write(f"duckctl {duckctl.__version__} (build {build})\n")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print version and build."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    no_color: bool = typer.Option(False, "--no-color", help="No colours (as NO_COLOR=1)."),
    verbose: int = typer.Option(0, "-v", "--verbose", count=True, help="Say more (stderr)."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Say only what went wrong."),
) -> None:
    """Turn one GPU machine and a shelf of small x86 boxes into one mixture-of-experts machine.

    \b
    Examples:
      duckctl demo                                   the whole chain on this machine
      duckctl lab up --ducks 4                       four ducks as processes
      duckctl serve ducklet --inventory lab.yml      an OpenAI-compatible API
      duckctl health --inventory inventory/rack32.yml

    \b
    Exit codes: 0 done, 1 failure, 2 wrong usage or input, 3 only a part succeeded,
    4 a duck does not answer, 130 interrupted.
    """
    settings = context.ensure_object(Settings)
    settings.debug = debug
    if no_color:
        os.environ["NO_COLOR"] = "1"
    set_verbosity(-1 if quiet else verbose)


def _hoist_global_flags(arguments: Sequence[str]) -> list[str]:
    """Moves --debug and its like to the front, so that their place does not matter."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags = [a for a in arguments[:end] if a in GLOBAL_FLAGS]
    rest = [a for a in arguments[:end] if a not in GLOBAL_FLAGS]
    return [*flags, *rest, *arguments[end:]]


def _report(message: str, hint: str = "") -> None:
    lines = [f"error: {message}"] + ([f"  hint: {hint}"] if hint else [])
    sys.stderr.write(plain_lines("\n".join(lines)) + "\n")


def _report_usage(error: typer.TyperException) -> None:
    """A mistyped command line: what is wrong, and where its help is."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message() + "\n")
        return
    path = context.command_path if context is not None else "duckctl"
    _report(error.format_message(), f"see: {path} --help")


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code; all errors end here."""
    settings = Settings()
    try:
        command = get_command(app)
        result = command.main(
            args=_hoist_global_flags(arguments),
            prog_name="duckctl",
            standalone_mode=False,
            obj=settings,
        )
        code = result if isinstance(result, int) else ExitCode.OK
    except typer.TyperException as error:
        _report_usage(error)
        return error.exit_code
    except DuckError as error:
        if settings.debug:
            traceback.print_exc()
        _report(error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has left; nothing more can be said on stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except Exception as error:  # noqa: BLE001 - all errors end here
        if settings.debug:
            traceback.print_exc()
        _report(f"{type(error).__name__}: {error}", "" if settings.debug else DEBUG_HINT)
        return ExitCode.FAILURE
    if code == ExitCode.INTERRUPTED:
        sys.stderr.write("interrupted\n")
    return code


def main() -> None:
    """Entry point of the console script."""
    with signals_interrupt():
        code = run(sys.argv[1:])
    sys.exit(code)


if __name__ == "__main__":
    main()
