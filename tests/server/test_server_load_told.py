"""While weights load, a person sees bytes, rate and the time that is left."""

from __future__ import annotations

import pytest

from host_runtime.server.startup import LoadTold

MIB = 1 << 20


def test_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """By what was moved since the first look; what was in place before counts for nothing."""
    now = [100.0]
    told = LoadTold(lambda: now[0])
    told(50 * MIB, 1000 * MIB)  # in place from an earlier load
    now[0] += 4.0
    told(450 * MIB, 1000 * MIB)
    now[0] += 5.5
    told(1000 * MIB, 1000 * MIB)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("50 of 1000 MiB loaded")
    assert lines[1].endswith("450 of 1000 MiB loaded, 105 MB/s to all ducks, 6 s left")
    assert lines[2].endswith("1000 of 1000 MiB loaded, 105 MB/s to all ducks")


def test_nothing_moved_tells_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """No division by nothing."""
    told = LoadTold(lambda: 5.0)
    told(0, 8 * MIB)
    told(0, 8 * MIB)
    assert capsys.readouterr().err.count("0 of 8 MiB loaded\n") == 2
