"""Remote ducks answer all reference prompts token for token, whatever the fleet and the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity_fleet import answer, host_model, reference, remote_fleet

from host_runtime.engine import Engine
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.transport import Faults

LOSSY = Faults(seed=20261130, drop=0.05, duplicate=0.05, reorder=0.05)


def assert_parity(experts: RemoteExperts, mtp: bool) -> None:
    """All 13 prompts, 64 tokens each, and the MTP counts of reference.json."""
    engine = Engine(host_model(), experts, mtp=mtp)
    for prompt in reference():
        tokens, finished = answer(engine, prompt)
        assert finished.error is None, (prompt["name"], finished.error)
        assert tokens == prompt["greedy_ids"], prompt["name"]
        counts = (finished.stats.drafts_proposed, finished.stats.drafts_accepted)
        expected = (prompt["mtp1_proposed"], prompt["mtp1_accepted"]) if mtp else (0, 0)
        assert counts == expected, prompt["name"]


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["fp9", "fp8"])
@pytest.mark.parametrize("ducks", [1, 2, 4, 8])
def test_parity_of_remote_ducks(tmp_path: Path, ducks: int, weight_format: str) -> None:
    with remote_fleet(tmp_path, ducks, weight_format) as experts:
        for mtp in (True, False):
            assert_parity(experts, mtp)


@pytest.mark.slow
def test_parity_on_a_lossy_wire(tmp_path: Path) -> None:
    with remote_fleet(tmp_path, 4, "fp9", RemoteOptions(faults=LOSSY)) as experts:
        assert_parity(experts, mtp=True)
        injected = sum(status.counters["resent"] for status in experts.status())
        assert injected > 0, "the faults did not reach the wire"
