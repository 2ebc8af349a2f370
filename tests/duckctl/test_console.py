"""What comes from elsewhere is shown, never obeyed by the terminal."""

from __future__ import annotations

import logging

import pytest

from duckctl import cli
from duckctl.boot.events import BootEvent
from duckctl.commands.boot import _event_text
from duckctl.commands.events import _print
from duckctl.console import plain, plain_lines, print_table, set_verbosity, talk, warn
from duckctl.lifecycle.store import StoredEvent

# Reset, C1 CSI, a link (OSC 8), DEL; then a forged line.
BAD = "a\x1bc\x9b2J\x1b]8;;http://x\x07b\x7f\r\nforged: \x1b[32mok\tä"
SHOWN = "a?c?2J?]8;;http://x?b??"


def is_harmless(text: str) -> bool:
    return not any((ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in text)


def test_plain_text_has_no_control_character() -> None:
    """One line, or lines and tabs; letters of any language stay."""
    assert plain(BAD) == SHOWN + "?forged: ?[32mok?ä"
    assert plain_lines(BAD) == SHOWN + "\nforged: ?[32mok\tä"
    assert all(plain(chr(c)) == "?" for c in (*range(0x20), *range(0x7F, 0xA0)))
    assert plain("Straße 東 […]") == "Straße 東 […]"


def test_talk_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """What goes to stderr keeps its lines and nothing else that steers."""
    handlers = logging.getLogger("duckctl").handlers
    try:
        set_verbosity(0)
        talk(f"t {BAD}")
        warn(f"w {BAD}")
    finally:
        logging.getLogger("duckctl").handlers = handlers
    cli._report(f"e {BAD}", f"h {BAD}")
    said = capsys.readouterr().err
    assert is_harmless(said)
    for start in ("t ", "warning: w ", "error: e ", "  hint: h "):
        assert f"{start}{SHOWN}\nforged: ?[32mok\tä\n" in said


def test_cells_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell is words: no colours of its own either."""
    print_table(BAD, ("name", "n>"), [(BAD, 1), ("\x1b[31mred\x1b[0m", 2)])
    said = capsys.readouterr().out
    assert is_harmless(said)
    assert SHOWN in said
    assert "?[31mred?[0m" in said


def test_events_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """No path and no reason begins a line that somebody else wrote."""
    shown = _event_text(BootEvent(0.0, "http_missing", file=f"/{BAD}", text=BAD))
    assert is_harmless(shown)
    assert "\n" not in shown
    _print([StoredEvent(1, 0.0, "duck01", "note", "off", "off", BAD, "")], as_json=False)
    said = capsys.readouterr().out
    assert is_harmless(said)
    assert said.count("\n") == 1
