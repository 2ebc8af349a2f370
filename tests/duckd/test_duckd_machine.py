"""Proves what needs a machine of its own: calls by broadcast in a network namespace, weights in
huge pages where there are some."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckd_client as wire
import pytest
from duckd_process import DuckProcess, duckd_binary

Kernel = Callable[..., bytes]
HERE = Path(__file__).parent
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")


def can_make_namespaces() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0


def free_huge_pages() -> int:
    return int(HUGE_PAGES.read_text()) if HUGE_PAGES.exists() else 0


@pytest.mark.skipif(not can_make_namespaces(), reason="needs network namespaces and ip")
def test_broadcast_reaches_every_duck(tmp_path: Path, kernel: Kernel) -> None:
    (tmp_path / "echo.elf").write_bytes(kernel("echo"))
    inside = [sys.executable, str(HERE / "broadcast_inside.py"), str(duckd_binary()), str(tmp_path)]
    done = subprocess.run(["unshare", "-rn", *inside], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "3 ducks, 20 broadcast calls, 60 results\n"


@pytest.mark.skipif(free_huge_pages() < 4, reason="needs 4 free huge pages of 2 MiB")
def test_weights_lie_in_huge_pages(tmp_path: Path, kernel: Kernel) -> None:
    weights = bytes(range(256)) * (3 << 12)  # 3 MiB
    free = free_huge_pages()
    with DuckProcess(tmp_path) as duck, duck.client() as client:
        client.load(wire.WEIGHTS_REGION, weights)
        assert free_huge_pages() == free - 2
        client.load(wire.KERNEL_REGION, kernel("echo"))
        assert client.open().status == wire.OK
        assert client.call(b"WGHT" + bytes(4)) == weights[:64] + bytes(64)
        with duck.client() as other:
            assert other.info[198] == 1
        # More than there are: normal memory, said so.
        client.close_session()
        size = (free + 1) << 21
        assert client.reserve(wire.WEIGHTS_REGION, size).status == wire.OK
        assert free_huge_pages() == free
        with duck.client() as other:
            assert other.info[198] == 0
    assert free_huge_pages() == free


def test_huge_pages_are_not_touched_when_told(tmp_path: Path) -> None:
    with DuckProcess(tmp_path, "--huge-pages", "never") as duck, duck.client() as client:
        client.load(wire.WEIGHTS_REGION, bytes(3 << 20))
        with duck.client() as other:
            assert other.info[198] == 0
            link = struct.unpack_from("<IIi", other.info, 176)
            assert link[0] > 0  # MTU of the loopback interface
