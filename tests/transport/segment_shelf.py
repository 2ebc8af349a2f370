"""Ducks with the echo kernel on Ethernet segments, and a call that checks their sum."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from real_duckd import DuckdProcess, new_key
from segments import Segments
from transport_kit import Shelf, call, scale_call, scaled_sum

from duckctl.native import native_path
from host_runtime.transport import Transport

PORT = 7211
DOMAINS, DUCKS_PER_DOMAIN = 2, 2


@contextlib.contextmanager
def running_segments(
    folder: Path,
    kernel: bytes,
    mtu: int,
    domains: int = DOMAINS,
    per_domain: int = DUCKS_PER_DOMAIN,
    *,
    device: str = "",
) -> Iterator[tuple[Segments, Shelf]]:
    """Ducks on their segments. ``device``: of a DPDK port, "{nic}" stands for the host's card."""
    key = new_key()
    segments = Segments(mtu, domains, bare=bool(device))
    ducks: list[DuckdProcess] = []
    try:
        for index in range(domains * per_domain):
            namespace, address = segments.add_duck(index // per_domain, index)
            prefix = ("ip", "netns", "exec", namespace)
            # Any address: a socket bound to its own would not hear broadcasts.
            duck = DuckdProcess(
                f"d{index + 1:02}", folder, key, native_path("duckd"), "0.0.0.0", PORT, prefix
            )
            ducks.append(duck)
            duck.start()
            duck.address = address
        places = [index // per_domain for index in range(len(ducks))]
        broadcast = {domain: f"10.21.{domain + 1}.255" for domain in range(domains)}
        shelf = Shelf(folder, key, kernel, ducks, places, mtu, broadcast)
        if device:
            for domain in range(domains):
                shelf.bind_addresses[domain] = f"10.21.{domain + 1}.1"
                shelf.devices[domain] = device.format(nic=f"nic{domain}")
        yield segments, shelf
    finally:
        for duck in ducks:
            duck.kill()
        segments.remove()


def check_call(transport: Transport, ducks: list[int]) -> None:
    values = np.arange(3000, dtype=np.float32) / np.float32(7)
    np.testing.assert_array_equal(
        call(transport, scale_call(values), len(values)), scaled_sum(values, ducks)
    )
