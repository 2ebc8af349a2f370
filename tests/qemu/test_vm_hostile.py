"""A hostile neighbour at the wire's full rate: the duck lives, and its weights are untouched."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_kit import SHAPE, answers, boot, inside, lab_folder, say, why_not

from duckctl.fleet_file import fleet_document, write_json
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import network
from duckctl.native import native_path
from host_runtime import wire
from host_runtime.fleet.config import load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.transport import Transport, TransportOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(SHAPE)), reason=why_not(SHAPE)),
]
SECONDS = os.environ.get("DUCK_HOSTILE_SECONDS", "6")
WEIGHT_BYTES = 8 << 20
REQUEST_MS = 20_000
HELLO_MS = 10_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    with lab_folder(tmp_path / "lab") as folder:
        yield folder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hostile") / "hostile_frames"
    source = Path(__file__).with_name("hostile_frames.c")
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"]
    subprocess.run(["cc", *flags, str(source), "-o", str(out)], check=True)
    return out


def opened(folder: LabFolder) -> Transport:
    fleet_file = folder.root / "fleet.json"
    write_json(fleet_file, fleet_document(load_inventory(folder.inventory)))
    options = TransportOptions(silence_ms=REQUEST_MS)
    return connect(load_fleet(fleet_file), native_path("libduckhost.so"), options)


def request(transport: Transport, kind: wire.MessageType, payload: bytes) -> None:
    transport.request(0, kind, payload, REQUEST_MS)


def commit(transport: Transport, data: bytes) -> None:
    """The duck hashes its own memory; another byte anywhere is refused."""
    order = wire.Commit(region=wire.Region.WEIGHTS, flags=wire.COMMIT_LAST, bytes=len(data))
    order.sha256[:] = order.set_id[:] = list(hashlib.sha256(data).digest())
    request(transport, wire.MessageType.COMMIT, bytes(order))


@pytest.mark.parametrize(("nic", "mtu"), [("virtio", 9000), ("e1000e", 1500)])
def test_a_hostile_network(folder: LabFolder, program: Path, nic: str, mtu: int) -> None:
    """Random, truncated, oversized, spoofed, fragmented and unsealed frames."""
    state, _ = boot(folder, replace(SHAPE, nics=(nic,), mtu=mtu))  # type: ignore[arg-type]
    duck = state.ducks[0]
    before = answers(folder, state)[0]
    seed = random.SystemRandom().randrange(1 << 32)
    say(f"seed {seed}")
    data = random.Random(seed).randbytes(WEIGHT_BYTES)
    with inside(state), opened(folder) as transport:
        transport.hello(0, HELLO_MS)
        order = wire.Reserve(region=wire.Region.WEIGHTS, bytes=len(data))
        request(transport, wire.MessageType.RESERVE, bytes(order))
        transport.write(0, wire.Region.WEIGHTS, 0, data)
        commit(transport, data)
    sender = [str(program), "nic1", duck.mac, duck.address, str(mtu), SECONDS, str(seed)]
    command = network.inside(state.namespace("host"), sender)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    say(done.stdout)
    with inside(state), opened(folder) as transport:
        transport.hello(0, HELLO_MS)
        request(transport, wire.MessageType.RESERVE, bytes(order))  # the same size: kept
        commit(transport, data)
    after = answers(folder, state)[0]
    say(str({key: after["stats"][key] - before["stats"][key] for key in after["stats"]}))
    assert after["boot_id"] == before["boot_id"]
    dropped = ("dropped_magic", "dropped_session", "dropped_size", "dropped_type")
    for counter in dropped:
        assert after["stats"][counter] > before["stats"][counter], counter
