"""Streams: results go to stdout, talk goes to stderr, JSON is for machines.

Colours follow the usual rules: none when the stream is no terminal, when NO_COLOR is set or
TERM=dumb; ``duckctl --no-color`` sets NO_COLOR for the process and for what it starts.

Much of what is told comes from elsewhere: paths that a box asked for, what a duck says of itself.
Nothing of it may steer the terminal, so all text goes out through ``plain`` or ``plain_lines``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
# Tables that go into a pipe are not squeezed to the 80 columns of an unknown terminal.
PIPE_COLUMNS = 200

# ECMA-48 and ECMA-6: C0, DEL and C1; the second one spares line breaks and tabs.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
CONTROL_BUT_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_log = logging.getLogger("duckctl")


def console(stderr: bool = False) -> Console:
    """A rich console for results (stdout) or, with ``stderr``, for talk."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        stderr=stderr,
        width=PIPE_COLUMNS if piped else None,
        highlight=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def plain(text: str) -> str:
    """The text as one line: each control character, line breaks too, becomes ``?``."""
    return CONTROL.sub("?", text)


def plain_lines(text: str) -> str:
    """The text without control characters (each becomes ``?``); line breaks and tabs stay."""
    return CONTROL_BUT_LINES.sub("?", text)


def talk(message: str) -> None:
    """A line for the person at the terminal; silent under --quiet."""
    _log.info(plain_lines(message))


def warn(message: str) -> None:
    """A line that --quiet does not silence."""
    _log.warning(plain_lines(f"warning: {message}"))


def detail(message: str) -> None:
    """A line that only --verbose shows."""
    _log.debug(plain_lines(message))


def set_verbosity(level: int) -> None:
    """-1 is --quiet, 0 normal, 1 and more --verbose."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers = [handler]
    _log.propagate = False
    _log.setLevel(logging.WARNING if level < 0 else logging.INFO if level == 0 else logging.DEBUG)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout, ``schema_version`` first (minor additions keep the number).

    JSON has no NaN and no infinity: what is not known is None.
    """
    document = {"schema_version": SCHEMA_VERSION, **document}
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout. A column name that ends in ``>`` is right-aligned.

    Cells are words, never colours: control characters in them become ``?``.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=plain(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        table.add_column(
            column.rstrip(">"),
            justify="right" if column.endswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(plain_lines(str(cell))) for cell in row))
    output = console()
    with output.capture() as captured:
        output.print(table)
    # Cells are padded; spaces at the end of a line only get in the way of those who read a pipe.
    lines = [line.rstrip() for line in captured.get().splitlines()]
    sys.stdout.write("\n".join(lines).strip("\n") + "\n")
    sys.stdout.flush()


def human_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
