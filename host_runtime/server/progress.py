"""Talk to the person who started the server; it goes to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress is talk to a person


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announce a slow step and say how long it took."""
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: done in {time.monotonic() - start:.1f} s")
