"""Questions and answers as a person reads them while they come."""

from __future__ import annotations

from collections.abc import Callable

from duckctl.console import plain_lines

BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class Transcript:
    """Writes through ``write``; thoughts are dim where there are colours, indented elsewhere."""

    def __init__(self, write: Callable[[str], None], colour: bool) -> None:
        self._write = write
        self._bold, self._dim, self._reset = (BOLD, DIM, RESET) if colour else ("", "", "")
        self._indent = "" if colour else "    "
        self._thinking = False

    def question(self, text: str) -> None:
        """A heading."""
        self._thinking = False
        self._write(f"\n{self._bold}> {text}{self._reset}\n\n")

    def part(self, text: str, thinking: bool) -> None:
        """A piece of the answer; thoughts and the answer proper are kept apart."""
        if thinking and not self._thinking:
            self._write(self._indent)
        elif self._thinking and not thinking:
            self._write("\n\n")
        self._thinking = thinking
        text = plain_lines(text)  # what a model writes is printed, never obeyed
        if thinking:
            text = text.replace("\n", f"\n{self._indent}")
            text = f"{self._dim}{text}{self._reset}"
        self._write(text)

    def end(self, cut: bool) -> None:
        """The answer is over; ``cut`` when it ran into its token limit."""
        self._write(" […]\n" if cut else "\n")
