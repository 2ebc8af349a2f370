"""``duckctl power``: switches ducks by the power backends of their inventory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import typer

from duckctl.console import print_json, print_table, talk
from duckctl.errors import DuckError, ExitCode, UsageError
from duckctl.inventory import Duck, Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.choose import choose
from duckctl.power.backend import Action, PowerBackend, PowerError, PowerState, what_went_wrong
from duckctl.power.ladder import power_ladder

app = typer.Typer(no_args_is_help=True)

AT_ONCE_MAX = 16  # switches asked at the same time
# All supplies of a rack at once would trip a breaker: between two ducks of one command.
STAGGER_S = 0.2
CONFIRM_ABOVE = 1

INVENTORY = typer.Option(None, "--inventory", help="Inventory file.  [default: the lab's]")
BACKEND = typer.Option("", "--backend", help="Only this backend of the inventory.")
YES = typer.Option(False, "--yes", "-y", help="Do not ask before switching several ducks.")
JSON = typer.Option(False, "--json", help="Print JSON.")
PATTERN = typer.Argument(..., help="Ducks, e.g. duck07 or 'domain1,!duck03'.", metavar="PATTERN")


@dataclass(frozen=True)
class Answer:
    """What came of one duck: by which backend, its state or what went wrong."""

    duck: str
    backend: str
    state: str
    problem: str = ""


@app.command()
def status(
    pattern: str = typer.Argument("all", help="Ducks.", metavar="[PATTERN]"),
    inventory: Path | None = INVENTORY,
    backend: str = BACKEND,
    as_json: bool = JSON,
) -> None:
    """Ask the switches whether their ducks have power.

    Exit code 0: all could be asked. 3: some could not.

    \b
    Examples:
      duckctl power status
      duckctl power status domain1 --json
    """
    _for_each(pattern, inventory, backend, _ask, as_json, stagger_s=0.0)


@app.command()
def on(
    pattern: str = PATTERN,
    inventory: Path | None = INVENTORY,
    backend: str = BACKEND,
    as_json: bool = JSON,
) -> None:
    """Switch ducks on.

    \b
    Examples:
      duckctl power on all
      duckctl power on 'duck[01-08]' --backend wol
    """
    _for_each(pattern, inventory, backend, _doing(Action.ON), as_json)


@app.command()
def off(
    pattern: str = PATTERN,
    inventory: Path | None = INVENTORY,
    backend: str = BACKEND,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Cut the power of ducks. They keep nothing but what is in their caches on the host.

    \b
    Examples:
      duckctl power off duck07
      duckctl power off all --yes
    """
    _for_each(pattern, inventory, backend, _doing(Action.OFF), as_json, confirm="off", yes=yes)


@app.command()
def cycle(
    pattern: str = PATTERN,
    inventory: Path | None = INVENTORY,
    backend: str = BACKEND,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Restart ducks by their switch, without waiting for them.

    `duckctl reboot` waits until each is ready again and tries one backend after the other.

    \b
    Examples:
      duckctl power cycle duck07
      duckctl power cycle duck07 --backend ipmi
    """
    _for_each(pattern, inventory, backend, _doing(Action.CYCLE), as_json, confirm="cycle", yes=yes)


def _for_each(
    pattern: str,
    inventory: Path | None,
    backend: str,
    work: Callable[[Duck, Sequence[PowerBackend]], Answer],
    as_json: bool,
    *,
    confirm: str = "",
    yes: bool = False,
    stagger_s: float = STAGGER_S,
) -> None:
    """One answer per duck; a duck that fails does not stop the others."""
    fleet = choose_inventory(inventory)
    ducks = choose(fleet, pattern)
    if confirm and not yes and len(ducks) > CONFIRM_ABOVE:
        _confirm(confirm, ducks)
    with ThreadPoolExecutor(AT_ONCE_MAX) as pool:
        waiting = []
        for index, duck in enumerate(ducks):
            if index and stagger_s:
                time.sleep(stagger_s)
            waiting.append(pool.submit(_safely, work, duck, fleet, backend))
        answers = [answer.result() for answer in waiting]
    _report(answers, as_json)


def _confirm(what: str, ducks: Sequence[Duck]) -> None:
    import sys

    if not sys.stdin.isatty():
        raise UsageError(
            f"power {what} would touch {len(ducks)} ducks and nobody is there to ask",
            "add --yes if that is meant",
        )
    names = ", ".join(duck.name for duck in ducks)
    if not typer.confirm(f"power {what} of {len(ducks)} ducks ({names})?", err=True):
        raise typer.Abort


def _safely(
    work: Callable[[Duck, Sequence[PowerBackend]], Answer], duck: Duck, fleet: Fleet, backend: str
) -> Answer:
    try:
        ladder = [b for b in power_ladder(duck, fleet) if backend in ("", b.name)]
        return work(duck, ladder)
    except DuckError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return Answer(duck.name, backend or "-", PowerState.UNKNOWN, f"{error.message}{hint}")
    except Exception as error:  # noqa: BLE001 - the other ducks go on
        return Answer(duck.name, backend or "-", PowerState.UNKNOWN, what_went_wrong(error))


def _ask(duck: Duck, ladder: Sequence[PowerBackend]) -> Answer:
    """The first backend that can tell decides; one that fails is told if none can."""
    problem = "" if ladder else "no power backend in the inventory (duck_power)"
    for backend in ladder:
        try:
            state = backend.state()
        except Exception as error:  # noqa: BLE001 - the next backend may know
            problem = problem or what_went_wrong(error)
            continue
        if state is not PowerState.UNKNOWN:
            return Answer(duck.name, backend.name, state)
    return Answer(duck.name, "-", PowerState.UNKNOWN, problem)


def _doing(action: Action) -> Callable[[Duck, Sequence[PowerBackend]], Answer]:
    def act(duck: Duck, ladder: Sequence[PowerBackend]) -> Answer:
        able = [backend for backend in ladder if action in backend.actions]
        if not able:
            tried = ", ".join(backend.name for backend in ladder) or "none"
            raise PowerError(
                f"no power backend of {duck.name} can switch {action}; it has: {tried}"
            )
        problems = []
        for backend in able:
            try:
                backend.act(action)
            except Exception as error:  # noqa: BLE001 - the next backend may do it
                problems.append(what_went_wrong(error))
                continue
            return Answer(duck.name, backend.name, f"{action} sent")
        raise PowerError("; ".join(problems))

    return act


def _report(answers: Sequence[Answer], as_json: bool) -> None:
    failed = [answer for answer in answers if answer.problem]
    if as_json:
        rows = [
            {"name": a.duck, "backend": a.backend, "state": a.state, "problem": a.problem or None}
            for a in answers
        ]
        print_json({"ducks": rows})
    else:
        print_table(
            "",
            ("duck", "backend", "state", "problem"),
            [(a.duck, a.backend, a.state, a.problem or "-") for a in answers],
        )
    if failed:
        talk(f"{len(failed)} of {len(answers)} ducks could not be switched or asked")
        raise typer.Exit(ExitCode.FAILURE if len(failed) == len(answers) else ExitCode.PARTIAL)
