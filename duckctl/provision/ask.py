"""Asks before many ducks are restarted. Without a person there, --yes has to be given."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from duckctl.errors import UsageError
from duckctl.provision.show import name_some

CONFIRM_ABOVE = 4


def confirm_restart(names: Sequence[str], serving: Sequence[str], yes: bool) -> None:
    """Returns when it is meant. Raises UsageError without a terminal, Abort for a "no"."""
    if yes or (len(names) <= CONFIRM_ABOVE and not serving):
        return
    what = f"restart {len(names)} duck{'s' if len(names) > 1 else ''} ({name_some(names)})"
    if serving:
        what += f", {len(serving)} of which serve: requests fail until they are back"
    if not sys.stdin.isatty():
        raise UsageError(f"this would {what}, and nobody is there to ask", "if so meant: --yes")
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Abort
