"""A bit that flips in a duck's memory is found, named, and mended while the others keep theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from duck_process import running_ducks, wait_until
from random_experts import RandomExperts, random_call

from duckctl.native import native_path
from host_runtime.experts.base import ExpertsUnavailableError
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.fleet.cache import load_cache

SEED = 77
EXPERTS = RandomExperts(SEED, hidden=128, intermediate=128, experts=2)
CALL = random_call(EXPERTS, SEED, 2, top_k=2)
QUICK = RemoteOptions(scrub_pause_s=0.01)


def flip_a_bit(pid: int, content: bytes) -> None:
    """In the process's own copy of these weights, as a cosmic ray would."""
    with Path(f"/proc/{pid}/maps").open() as maps:
        lines = [line for line in maps if " rw" in line]
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for line in lines:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if end - begin > 1 << 28:
                continue
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
            except OSError:
                continue
            at = held.find(content)
            if at >= 0:
                memory.seek(begin + at + len(content) // 2)
                memory.write(bytes([held[at + len(content) // 2] ^ 0x10]))
                return
    raise AssertionError("the weights are nowhere in the process's memory")


def counter(remote: RemoteExperts, name: str) -> list[float]:
    return [status.counters[name] for status in remote.status()]


@pytest.mark.slow
def test_a_flipped_bit_is_found_and_mended(tmp_path: Path) -> None:
    """The duck leaves, loads one piece anew, and the fleet gives the same bits as before."""
    cache_file = EXPERTS.write_cache(tmp_path / "cache", 2)
    with running_ducks(tmp_path, 2) as (ducks, fleet):
        kernel, library = native_path("experts-avx2.elf"), native_path("libduckhost.so")
        remote = RemoteExperts(fleet, cache_file, kernel, library, QUICK)
        try:
            remote.start()
            expected = remote.submit(1, *CALL).wait()
            wait_until(lambda: min(counter(remote, "scrub_passes")) >= 2, 30, "two passes")
            assert counter(remote, "scrub_damaged") == [0, 0]
            piece = load_cache(cache_file).slices[1].pieces[-1]
            data = piece.file.read_bytes()
            flip_a_bit(ducks[1].pid, data[-8192:])  # more than a packet holds
            wait_until(
                lambda: counter(remote, "scrub_damaged") == [0, 1], 30, "the damage is found"
            )
            wait_until(lambda: all(status.ready for status in remote.status()), 30, "it is mended")
            told = [event.text for event in remote.events() if event.duck == ducks[1].name]
            assert any("no longer has the cache's digest" in text for text in told)
            assert counter(remote, "loads") == [1, 2]
            sent = counter(remote, "weight_bytes_sent")
            kernel_bytes = kernel.stat().st_size
            assert sent[1] - sent[0] == kernel_bytes + piece.size_bytes  # of the weights one piece
            again = _answer(remote)
            assert torch.equal(again, expected)
        finally:
            remote.close()


def _answer(remote: RemoteExperts) -> torch.Tensor:
    for _ in range(50):
        try:
            return remote.submit(1, *CALL).wait()
        except ExpertsUnavailableError:
            continue
    raise AssertionError("no call works")


def test_no_pause_means_no_scrub(tmp_path: Path) -> None:
    """0 switches it off: nothing is ever hashed again."""
    cache_file = EXPERTS.write_cache(tmp_path / "cache", 1)
    with running_ducks(tmp_path, 1) as (_, fleet):
        kernel, library = native_path("experts-avx2.elf"), native_path("libduckhost.so")
        remote = RemoteExperts(fleet, cache_file, kernel, library, RemoteOptions(scrub_pause_s=0.0))
        try:
            remote.start()
            assert not remote._manager._scrubber._thread.is_alive()
            assert counter(remote, "scrubbed_pieces") == [0]
        finally:
            remote.close()
