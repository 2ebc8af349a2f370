"""Runs a program of the system for a backend: a deadline, no shell, no secret in its arguments."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from duckctl.power.backend import PowerError

OUTPUT_CHARACTERS_MAX = 300


def run_tool(duck: str, arguments: Sequence[str], timeout_s: float, install_hint: str = "") -> str:
    """What the program printed. Raises PowerError when it is missing, fails, or takes too long."""
    program = arguments[0]
    try:
        result = subprocess.run(
            list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise PowerError(f"{duck}: '{program}' is not installed", install_hint) from None
    except OSError as error:
        raise PowerError(f"{duck}: cannot run '{program}': {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise PowerError(f"{duck}: '{program}' did not end within {timeout_s:.0f} s") from None
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip())[-OUTPUT_CHARACTERS_MAX:]
        raise PowerError(f"{duck}: '{program}' ended with exit code {result.returncode}: {said}")
    return result.stdout
