"""The lab's own services, each a process in one of its namespaces.

    python -m duckctl.lab.vm.service boot|switch|bmc --state-dir DIR --mark WORD

``boot`` answers DHCP, TFTP and HTTP in the host's namespace; ``switch`` gives power to machines
whose magic packet passes; ``bmc`` is the board controllers of all guests. They end at SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import selectors
import signal
import socket
import sys
from pathlib import Path

from duckctl.boot.plan import plan_boot
from duckctl.boot.service import BootService
from duckctl.console import talk, warn
from duckctl.errors import DuckError
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab, shape, wake
from duckctl.lab.vm.boot import WAKE_PORT
from duckctl.lab.vm.state import required


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m duckctl.lab.vm.service")
    parser.add_argument("role", choices=("boot", "switch", "bmc"))
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--mark", required=True, help="by which the lab finds this process")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guests are reaped by the kernel
    folder = LabFolder(options.state_dir)
    try:
        roles = {"boot": run_boot, "switch": run_switch, "bmc": run_bmc}
        roles[options.role](folder)
    except DuckError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return int(error.exit_code)
    return 0


def run_boot(folder: LabFolder) -> None:
    """DHCP, TFTP and HTTP as the inventory says, for ever."""
    plan = plan_boot(load_inventory(folder.inventory))
    service = BootService(plan, on_finding=lambda finding: warn(f"{finding.duck}: {finding.text}"))
    service.run(lambda: talk("the boot service answers"))


def run_switch(folder: LabFolder) -> None:
    """Listens on every bridge for magic packets, for ever."""
    state = required(folder)
    names = {duck.mac: duck.name for duck in state.ducks}
    with selectors.DefaultSelector() as selector:
        for domain in range(1, state.shape.domains + 1):
            selector.register(wake.listen(f"br{domain}"), selectors.EVENT_READ)
            # An open port, so that the kernel answers no magic packet with "port unreachable".
            sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sink.bind((shape.switch_address(domain), WAKE_PORT))
            selector.register(sink, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                channel = key.fileobj
                assert isinstance(channel, socket.socket)
                frame = channel.recv(wake.FRAME_BYTES_MAX)
                mac = wake.woken(frame, names) if channel.family == socket.AF_PACKET else None
                if mac is not None:
                    wake_up(folder, names[mac])


def run_bmc(folder: LabFolder) -> None:
    """One board controller per guest, each at a port of the switch's address, for ever."""
    from duckctl.lab.vm.bmc import serve

    serve(folder, required(folder))


def wake_up(folder: LabFolder, name: str) -> None:
    """Gives power to one machine; a machine that cannot start is only reported."""
    try:
        lab.require_on(folder, lab.switch_on(folder, [name]), [name])
        talk(f"{name} was woken by a magic packet")
    except DuckError as error:
        warn(f"{name} could not be woken: {error.message}")


if __name__ == "__main__":
    sys.exit(main())
