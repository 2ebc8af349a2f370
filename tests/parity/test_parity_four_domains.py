"""Four isolated Ethernet domains, over sockets and NIC queues: the tokens of local experts."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from parity_fleet import answer, host_model, reference, shard
from real_duckd import DuckdProcess, new_key
from segments import AF_PACKET, Segments, why_not, why_not_dpdk

from duckctl.fleet_file import fleet_document, write_json
from duckctl.inventory import load_inventory
from duckctl.keys import PRIVATE_LABEL
from duckctl.model_dir import resolve_model_dir
from duckctl.native import native_path
from host_runtime.engine import Engine
from host_runtime.experts.remote import RemoteExperts
from host_runtime.fleet.config import load_fleet
from host_runtime.models import load_model

DOMAINS, PORT = 4, 7211
PROMPTS, TOKENS = 3, 24
PROTOCOL_AT, FROM_AT, TO_AT = 14 + 9, 14 + 12, 14 + 16  # in a frame
UDP = 17


def inventory_text(ducks: list[tuple[int, str]], mtu: int, device: str) -> str:
    """``ducks``: domain and address of each, in slot order."""
    lines = ["all:", "  vars: {fleet_name: segments, fleet_key_file: fleet.key}", "  children:"]
    lines += ["    ducks:", f"      vars: {{duck_port: {PORT}, duck_cores: 1}}", "      children:"]
    for domain in range(DOMAINS):
        lines += [f"        domain{domain + 1}:", "          vars:"]
        lines += [f"            domain_subnet: 10.21.{domain + 1}.0/24"]
        lines += [f"            domain_host_address: 10.21.{domain + 1}.1"]
        lines += ["            domain_dispatch: broadcast", f"            domain_mtu: {mtu}"]
        if device:
            lines += [f'            domain_device: "{device.format(nic=f"nic{domain}")}"']
        lines += ["          hosts:"]
        for slot, (where, address) in enumerate(ducks):
            if where == domain:
                one = f"{{duck_slot: {slot}, duck_address: {address}}}"
                lines += [f"            d{slot + 1:02}: {one}"]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def running_ducks(
    folder: Path, segments: Segments, per_domain: int, device: str, mtu: int
) -> Iterator[Path]:
    """One process per duck in a namespace of its own; the inventory that describes them."""
    key = new_key()
    domains = [slot // per_domain for slot in range(DOMAINS * per_domain)]
    places = [(domain, *segments.add_duck(domain, slot)) for slot, domain in enumerate(domains)]
    inventory = folder / "inventory.yml"
    inventory.write_text(inventory_text([(place[0], place[2]) for place in places], mtu, device))
    key_file = folder / "fleet.key"
    key_file.write_text(f"{PRIVATE_LABEL}{key.hex()}\n")
    key_file.chmod(0o600)
    with contextlib.ExitStack() as stack:
        for slot, (_, namespace, _) in enumerate(places):
            prefix = ("ip", "netns", "exec", namespace)
            # Any address: a socket bound to its own would not hear broadcasts.
            duck = DuckdProcess(
                f"d{slot + 1:02}", folder, key, native_path("duckd"), "0.0.0.0", PORT, prefix
            )
            stack.callback(duck.kill)
            duck.start()
        yield inventory


@cache
def local_tokens() -> list[list[int]]:
    """Of the model with all of its experts in this process."""
    loaded = load_model(resolve_model_dir("ducklet"), routed_experts="local")
    assert loaded.local_experts is not None
    engine = Engine(loaded.model, loaded.local_experts)
    return [answer(engine, prompt)[0] for prompt in prompts()]


def prompts() -> list[dict[str, Any]]:
    return [
        {**prompt, "greedy_ids": prompt["greedy_ids"][:TOKENS]} for prompt in reference()[:PROMPTS]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("per_domain", [1, 2])
@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("port", ["udp", "dpdk"])
def test_tokens_of_four_domains(tmp_path: Path, port: str, mtu: int, per_domain: int) -> None:
    """The engine's tokens equal those of local experts and of reference.json; each bridge carries
    its own network's packets only, between the host and this domain's ducks, both ways."""
    reason = why_not_dpdk() if port == "dpdk" else why_not()
    if reason:
        pytest.skip(reason)
    device = AF_PACKET if port == "dpdk" else ""
    with contextlib.ExitStack() as stack:
        segments = Segments(mtu, DOMAINS, bare=bool(device))
        stack.callback(segments.remove)
        inventory = stack.enter_context(running_ducks(tmp_path, segments, per_domain, device, mtu))
        cache_file = shard(inventory, "fp9", tmp_path / "cache")
        fleet_file = tmp_path / "fleet.json"
        write_json(fleet_file, fleet_document(load_inventory(inventory)))
        with segments.in_host():
            experts = RemoteExperts(
                load_fleet(fleet_file),
                cache_file,
                native_path("experts-avx2.elf"),
                native_path("libduckhost.so"),
            )
        stack.callback(experts.close)
        experts.start()
        engine = Engine(host_model(), experts)
        with segments.captured() as frames:
            for prompt, local in zip(prompts(), local_tokens(), strict=True):
                tokens, finished = answer(engine, prompt)
                assert finished.error is None, finished.error
                assert tokens == local == prompt["greedy_ids"]
    for domain, found in enumerate(frames):
        check_isolation(found, domain, per_domain)


def check_isolation(frames: list[bytes], domain: int, per_domain: int) -> None:
    """Every UDP packet on the bridge is between 10.21.D.1 and this domain's ducks or broadcast."""
    network = ipaddress.IPv4Network(f"10.21.{domain + 1}.0/24")
    host, everyone = network[1], network.broadcast_address
    slots = range(domain * per_domain, (domain + 1) * per_domain)
    ducks = {network[10 + slot] for slot in slots}
    pairs = {ends_of(frame) for frame in frames if frame[PROTOCOL_AT] == UDP}
    expected = {(host, everyone)} | {(duck, host) for duck in ducks}
    assert expected <= pairs, f"domain {domain}: {pairs}"
    allowed = expected | {(host, duck) for duck in ducks}  # heartbeats and repairs
    assert pairs <= allowed, f"domain {domain}: {pairs - allowed}"


def ends_of(frame: bytes) -> tuple[ipaddress.IPv4Address, ipaddress.IPv4Address]:
    return ipaddress.IPv4Address(frame[FROM_AT:TO_AT]), ipaddress.IPv4Address(
        frame[TO_AT : TO_AT + 4]
    )
