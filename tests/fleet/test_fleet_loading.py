"""Loading real ducks: only what lacks is sent, damage is refused by name, misfits are all named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from duck_process import running_ducks, wait_until
from fake_duck import FakeDuck
from fleet_files import fleet_content, write_json, write_key
from random_experts import RandomExperts, random_call

from duckctl.native import native_path
from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.fleet.config import FleetConfig, load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.fleet.manager import FleetStartError
from host_runtime.fleet.versions import DuckFacts, facts_of
from host_runtime.transport import Faults, TransportOptions

SEED = 23
EXPERTS = RandomExperts(SEED, hidden=128, intermediate=128, experts=2)


def make_remote(
    fleet: FleetConfig, cache_file: Path, options: RemoteOptions | None = None
) -> RemoteExperts:
    kernel, library = native_path("experts-avx2.elf"), native_path("libduckhost.so")
    return RemoteExperts(fleet, cache_file, kernel, library, options)


@contextmanager
def started(
    fleet: FleetConfig, cache_file: Path, options: RemoteOptions | None = None
) -> Iterator[RemoteExperts]:
    remote = make_remote(fleet, cache_file, options)
    try:
        remote.start()
        yield remote
    finally:
        remote.close()


def start_error(fleet: FleetConfig, cache_file: Path) -> HostError:
    remote = make_remote(fleet, cache_file)
    with pytest.raises(HostError) as caught:
        remote.start()
    return caught.value


def facts_of_all(fleet: FleetConfig) -> list[DuckFacts]:
    with connect(fleet, native_path("libduckhost.so"), TransportOptions()) as transport:
        return [facts_of(transport.hello(index, 2000).info) for index in range(len(fleet.ducks))]


def check_results(remote: RemoteExperts) -> None:
    call = random_call(EXPERTS, SEED, 2, top_k=2)
    actual = remote.submit(1, *call).wait().double()
    expected = EXPERTS.reference(1, *call)
    assert (actual - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_weights_that_are_there_are_not_sent_again(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    with running_ducks(tmp_path, 2) as (_, fleet):
        with started(fleet, cache_file) as remote:
            first = [status.counters["weight_bytes_sent"] for status in remote.status()]
            regions = [status.counters["weight_bytes"] for status in remote.status()]
            assert all(sent >= region for sent, region in zip(first, regions, strict=True))
        with started(fleet, cache_file) as remote:
            kernel_bytes = native_path("experts-avx2.elf").stat().st_size
            for status in remote.status():
                assert status.counters["weight_bytes_sent"] <= kernel_bytes
            check_results(remote)


def test_another_cache_replaces_the_weights(tmp_path: Path) -> None:
    other = RandomExperts(SEED + 1, hidden=128, intermediate=128, experts=2)
    with running_ducks(tmp_path, 2) as (_, fleet):
        with started(fleet, other.write_cache(tmp_path / "other", 2)):
            before = facts_of_all(fleet)
        with started(fleet, EXPERTS.write_cache(tmp_path / "cache", 2)) as remote:
            check_results(remote)
            after = facts_of_all(fleet)
    assert all(a.weights_id != b.weights_id for a, b in zip(after, before, strict=True))
    assert {a.state for a in after} == {wire.State.SERVING}


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    seen: list[tuple[int, int]] = []
    with running_ducks(tmp_path, 2) as (_, fleet):
        remote = make_remote(fleet, cache_file)
        remote.start(lambda done, total: seen.append((done, total)))
        remote.close()
    slices = json.loads(cache_file.read_text())["slices"]
    total = sum(entry["region_bytes"] for entry in slices)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_piece_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    piece = tmp_path / "slice-01" / "layer-002.bin"
    whole = piece.read_bytes()
    with running_ducks(tmp_path, 2) as (_, fleet):
        if damage == "flip":
            piece.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        elif damage == "truncate":
            piece.write_bytes(whole[:-1])
        else:
            piece.unlink()
        error = start_error(fleet, cache_file)
        assert "slice-01/layer-002.bin" in error.message
        assert "shard-weights" in error.hint
        facts = facts_of_all(fleet)
        assert facts[1].weights_id == bytes(32)
        assert facts[1].state in (wire.State.IDLE, wire.State.LOADING)
        piece.write_bytes(whole)
        with started(fleet, cache_file) as remote:
            check_results(remote)


def test_an_interrupted_load_goes_on_where_it_was(tmp_path: Path) -> None:
    """After a bad piece the good ones are in place; the next load sends only the rest."""
    cache_file = EXPERTS.write_cache(tmp_path, 1)
    last = tmp_path / "slice-00" / "layer-002.bin"
    whole = last.read_bytes()
    with running_ducks(tmp_path, 1) as (_, fleet):
        last.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        start_error(fleet, cache_file)
        last.write_bytes(whole)
        with started(fleet, cache_file) as remote:
            sent = remote.status()[0].counters["weight_bytes_sent"]
            kernel_bytes = native_path("experts-avx2.elf").stat().st_size
            assert len(whole) <= sent <= len(whole) + kernel_bytes
            check_results(remote)


def test_a_load_can_be_interrupted(tmp_path: Path) -> None:
    experts = RandomExperts(SEED, hidden=512, intermediate=512, experts=8)
    cache_file = experts.write_cache(tmp_path, 1)
    with running_ducks(tmp_path, 1) as (_, fleet):
        remote = make_remote(fleet, cache_file)

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            remote.start(interrupt)
        assert facts_of_all(fleet)[0].weights_id == bytes(32)


@pytest.mark.slow
def test_an_unreachable_duck_is_named(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    with running_ducks(tmp_path, 2) as (ducks, fleet):
        ducks[1].kill()
        error = start_error(fleet, cache_file)
    assert isinstance(error, FleetStartError)
    assert error.duck_names == ["d02"]
    assert "d02" in error.message and "d01" not in error.message


@pytest.mark.slow
def test_another_key_is_no_way_in(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 1)
    (tmp_path / "other").mkdir()
    with running_ducks(tmp_path, 1) as (ducks, _):
        content = fleet_content(write_key(tmp_path / "other"), [ducks[0].port])
        error = start_error(load_fleet(write_json(tmp_path / "f.json", content)), cache_file)
    assert isinstance(error, FleetStartError)
    assert error.duck_names == ["d01"]
    assert "key" in error.message + error.hint


def test_swapped_ducks_are_named(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    with running_ducks(tmp_path, 2) as (ducks, fleet):
        content = fleet_content(fleet.key_file, [ducks[1].port, ducks[0].port])
        error = start_error(load_fleet(write_json(tmp_path / "f.json", content)), cache_file)
    assert isinstance(error, FleetStartError)
    assert error.duck_names == ["d01", "d02"]
    assert "calls itself 'd02'" in error.message and "swapped" in error.message


def stale_binary(folder: Path, build: str) -> Path:
    """A duckd that tells another build hash: the 40 hex digits in its bytes are changed."""
    data = native_path("duckd").read_bytes()
    other = build[::-1].encode()
    raw, other_raw = bytes.fromhex(build), bytes.fromhex(other.decode())
    changed = data.replace(build.encode(), other).replace(raw, other_raw)
    assert changed != data
    path = folder / "duckd-stale"
    path.write_bytes(changed)
    path.chmod(0o755)
    return path


def test_stale_ducks_are_all_named(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 3)
    probe_folder = tmp_path / "probe"
    probe_folder.mkdir()
    with running_ducks(probe_folder, 1) as (ducks, _):
        build = ducks[0].build
    stale = stale_binary(tmp_path, build)
    with running_ducks(tmp_path, 3, {0: stale, 2: stale}) as (ducks, fleet):
        assert ducks[0].build != ducks[1].build
        error = start_error(fleet, cache_file)
    assert isinstance(error, FleetStartError)
    assert error.duck_names == ["d01", "d03"]
    assert error.message.count(f"this host is of build {build[:12]}") == 2
    assert "duckctl" in error.hint


def test_a_duck_of_another_protocol_version_is_named(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    with (
        running_ducks(tmp_path, 1) as (ducks, fleet),
        FakeDuck("d02", wire.WIRE_VERSION + 1) as other,
    ):
        content = fleet_content(fleet.key_file, [ducks[0].port, other.port])
        error = start_error(load_fleet(write_json(tmp_path / "f.json", content)), cache_file)
    assert isinstance(error, FleetStartError)
    assert error.duck_names == ["d02"]
    assert "d02" in error.message and f"protocol version {wire.WIRE_VERSION + 1}" in error.message
    assert error.hint


def test_a_duck_without_room_is_named(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 1)
    with running_ducks(tmp_path, 1, None, "--memory-limit", "65536") as (_, fleet):
        error = start_error(fleet, cache_file)
    assert "d01" in error.message and "bytes of weights" in error.message


@pytest.mark.slow
def test_a_duck_of_another_host_is_busy(tmp_path: Path) -> None:
    """The second host is refused with the duck's name; the first one notices nothing."""
    cache_file = EXPERTS.write_cache(tmp_path, 1)
    with running_ducks(tmp_path, 1) as (_, fleet):
        with started(fleet, cache_file) as remote:
            error = start_error(fleet, cache_file)
            assert "d01" in error.message and "another host" in error.message
            check_results(remote)
        with started(fleet, cache_file) as remote:  # closed: the duck is free at once
            check_results(remote)


@pytest.mark.slow
def test_a_dead_host_is_followed_by_the_next(tmp_path: Path) -> None:
    """A host that vanished without closing keeps nobody out for longer than its silence."""
    cache_file = EXPERTS.write_cache(tmp_path, 1)
    with running_ducks(tmp_path, 1) as (_, fleet), started(fleet, cache_file) as dead:
        dead.set_faults(Faults(cut_ducks=(0,)))  # nothing of this host arrives any more
        with started(fleet, cache_file) as remote:
            check_results(remote)


def test_many_starts_leave_nothing_behind(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)

    def handles() -> int:
        kinds = ("task", "fd")
        return sum(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in kinds)

    with running_ducks(tmp_path, 2) as (_, fleet):
        with started(fleet, cache_file) as remote:
            check_results(remote)
        before = handles()
        for _ in range(8):
            with started(fleet, cache_file) as remote:
                check_results(remote)
        wait_until(lambda: handles() <= before, 10, "threads and files as before")


def test_cache_for_another_number_of_ducks(tmp_path: Path) -> None:
    cache_file = EXPERTS.write_cache(tmp_path, 2)
    content = fleet_content(write_key(tmp_path), [7001])
    fleet = load_fleet(write_json(tmp_path / "fleet.json", content))
    with pytest.raises(HostError, match="is for 2 ducks, the fleet has 1"):
        make_remote(fleet, cache_file)
