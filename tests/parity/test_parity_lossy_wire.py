"""Packet loss, duplication and reordering change no token of any reference prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity_fleet import assert_parity, remote_fleet

from host_runtime.experts.remote import RemoteOptions
from host_runtime.transport import Faults

LOSSY = Faults(seed=20261130, drop=0.05, duplicate=0.05, reorder=0.05)


@pytest.mark.slow
def test_parity_on_a_lossy_wire(tmp_path: Path) -> None:
    with remote_fleet(tmp_path, 4, "fp9", RemoteOptions(faults=LOSSY)) as experts:
        assert_parity(experts, mtp=True)
        repaired = sum(status.counters["resent"] for status in experts.status())
        assert repaired > 0, "the faults did not reach the wire"
