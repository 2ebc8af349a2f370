"""A duck that fails while ducks are measured costs the others nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from duck_process import running_ducks

from duckctl.bench.weights import expert_region
from duckctl.native import native_path
from host_runtime import wire
from host_runtime.bench.ducks import Region, measure
from host_runtime.fleet.config import FleetConfig
from host_runtime.fleet.connect import connect
from host_runtime.fleet.kernel_file import load_kernel_file
from host_runtime.fleet.versions import facts_of
from host_runtime.transport import Transport, TransportOptions

HIDDEN, ROWS = 256, 64
FORMATS = ("fp8", "fp9")
SILENCE_S = 0.3


def region_file(folder: Path, fmt: str) -> Region:
    memory, record = expert_region(fmt, HIDDEN, ROWS, 1 << 20)
    path = folder / f"{fmt}.region"
    path.write_bytes(memory.bytes.tobytes())
    experts = (memory.size - 4096) // record
    memory.close()
    return Region(fmt, path, HIDDEN, ROWS, experts)


def connected(fleet: FleetConfig) -> Transport:
    settings = TransportOptions(silence_ms=int(SILENCE_S * 1000))
    return connect(fleet, native_path("libduckhost.so"), settings)


def test_a_call_is_credited_with_the_experts_that_it_reads() -> None:
    """A small region has fewer than a call takes; one that is named twice is read once."""
    assert Region("fp8", Path("x"), HIDDEN, ROWS, 40).params_per_call == 8 * 3 * HIDDEN * ROWS
    assert Region("fp8", Path("x"), HIDDEN, ROWS, 5).params_per_call == 5 * 3 * HIDDEN * ROWS


@pytest.mark.slow
@pytest.mark.parametrize("opening", [1, 2])
def test_a_duck_that_dies_leaves_the_others_measured_and_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: int
) -> None:
    """In the first format and in the last one: figures of every format for d01 and d03."""
    regions = [region_file(tmp_path, fmt) for fmt in FORMATS]
    kernel = load_kernel_file(native_path("experts-avx2.elf"))
    openings: list[Sequence[int]] = []
    with running_ducks(tmp_path, 3) as (ducks, fleet):

        def open_one() -> Transport:
            transport = connected(fleet)
            session_open = transport.session_open

            def session_open_and_kill(group: Sequence[int], *rest: Any) -> None:
                session_open(group, *rest)
                openings.append(list(group))
                if len(openings) == opening:
                    ducks[1].kill()

            monkeypatch.setattr(transport, "session_open", session_open_and_kill)
            return transport

        found = measure(open_one, fleet, kernel, regions, SILENCE_S)
        assert [0, 2] in openings
        assert [duck.problem for duck in (found[0], found[2])] == ["", ""]
        assert found[1].problem != ""
        for duck in (found[0], found[2]):
            assert set(duck.formats) == set(FORMATS)
            assert min(duck.read_bytes_per_s) > 0
        with connected(fleet) as transport:
            states = [facts_of(transport.hello(index, 2000).info).state for index in (0, 2)]
        assert states == [wire.State.IDLE] * 2


def test_a_duck_with_another_key_leaves_the_others_measured(tmp_path: Path) -> None:
    """It is refused by name, as one that does not answer; d01 has its figures."""
    region = region_file(tmp_path, "fp8")
    kernel = load_kernel_file(native_path("experts-avx2.elf"))
    with running_ducks(tmp_path, 2) as (ducks, fleet):
        with connected(fleet) as transport:
            for index in range(2):
                transport.hello(index, 2000)
        ducks[1].kill()
        ducks[1].identity_file.unlink()
        ducks[1].start()
        found = measure(lambda: connected(fleet), fleet, kernel, [region], SILENCE_S)
    assert (found[0].problem, set(found[0].formats)) == ("", {"fp8"})
    assert found[1].problem.startswith("d02: its key changed (pinned")
