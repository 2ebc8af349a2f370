"""The NIC port on shared-memory interfaces (memif), whose other end is another DPDK process."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from segment_shelf import check_call, running_segments
from segments import AF_PACKET, why_not_dpdk
from transport_kit import OPEN_MS, load_all, open_request, wait_until

from host_runtime.transport import Faults

SECONDS_MAX = 60
CALLS = 20


def build_forwarder(folder: Path) -> Path:
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libdpdk"], check=True, capture_output=True, text=True
    ).stdout
    program = folder / "forward"
    source = Path(__file__).with_name("forward.c")
    warnings = ["-Wall", "-Wextra", "-Werror", "-O2"]
    subprocess.run(["cc", *warnings, str(source), "-o", program, *shlex.split(flags)], check=True)
    return program


class Forwarder:
    """Starts when the other end's socket is there: a memif client does not wait for its server."""

    def __init__(self, program: Path, namespace: str, memif: Path) -> None:
        cpus = "0@(" + ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))) + ")"
        self._command = ["ip", "netns", "exec", namespace, str(program), str(SECONDS_MAX)]
        self._command += ["--no-huge", "--no-shconf", "-m", "256", "--no-pci", "--no-telemetry"]
        self._command += [
            f"--lcores={cpus}",
            f"--vdev={AF_PACKET.format(nic='nic0').replace(',', '0,', 1)}",
        ]
        self._command += [f"--vdev=net_memif0,role=client,socket={memif},socket-abstract=no"]
        self._memif = memif
        self._process: subprocess.Popen[bytes] | None = None
        self._starter = threading.Thread(target=self._start)

    def _start(self) -> None:
        wait_until(self._memif.exists, 10, "the memif server's socket")
        self._process = subprocess.Popen(self._command)

    def __enter__(self) -> None:
        self._starter.start()

    def __exit__(self, *_: object) -> None:
        self._starter.join()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.slow
def test_memif(tmp_path: Path, echo_kernel: bytes, mtu: int) -> None:
    """Host port - memif - another process - the wire: calls are right, with faults too."""
    reason = why_not_dpdk()
    if shutil.which("pkg-config") is None:
        reason = "pkg-config is not installed: it tells how to compile with DPDK"
    if reason:
        pytest.skip(reason)
    # A device's name has 95 characters, too few for most temporary paths.
    with tempfile.TemporaryDirectory(prefix="m") as short:
        check_memif(tmp_path, echo_kernel, mtu, Path(short) / "s")


def check_memif(tmp_path: Path, echo_kernel: bytes, mtu: int, memif: Path) -> None:
    device = f"net_memif,role=server,socket={memif},socket-abstract=no"
    forwarder = build_forwarder(tmp_path)
    with (
        running_segments(tmp_path, echo_kernel, mtu, 1, 2, device=device) as (segments, shelf),
        Forwarder(forwarder, segments.host, memif),
        shelf.transport() as transport,
    ):
        load_all(transport, shelf)
        transport.session_open(range(2), open_request(), OPEN_MS)
        for _ in range(CALLS):
            check_call(transport, [0, 1])
        transport.set_faults(Faults(seed=51, drop=0.05, duplicate=0.05, reorder=0.05))
        for _ in range(CALLS):
            check_call(transport, [0, 1])
        stats = transport.domain_stats(0)
        assert stats.packets_received > 2 * CALLS and stats.damaged == 0
