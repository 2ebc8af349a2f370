"""What pyproject.toml promises of a distribution is what the sources need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The first typer that has its own base class of usage errors.
TYPER_EXCEPTION_SINCE = (0, 28)


def test_typer_is_new_enough_for_its_exceptions() -> None:
    """cli.py catches typer.TyperException: an older typer would end every error in a traceback."""
    assert "typer.TyperException" in (ROOT / "duckctl" / "cli.py").read_text(encoding="utf-8")
    (bound,) = [entry for entry in PROJECT["dependencies"] if entry.startswith("typer")]
    major, minor = re.fullmatch(r"typer>=(\d+)\.(\d+)", bound).groups()  # type: ignore[union-attr]
    assert (int(major), int(minor)) >= TYPER_EXCEPTION_SINCE
