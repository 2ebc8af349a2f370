"""The lab's wires: namespace ``host``, ``sw`` with a bridge per domain, and one per process duck.

What to do is decided by pure functions that give lines for ``ip -batch``; making and removing are
thin. A namespace is removed only if it is the one on record: same name, same inode.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from duckctl.console import detail
from duckctl.lab.ducks import interrupts_wait
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import shape as plans
from duckctl.lab.vm.needs import program
from duckctl.lab.vm.shape import VmDuck, VmShape
from duckctl.lab.vm.state import Namespace, VmState, save
from duckctl.process import boot_id

IP_TIMEOUT_S = 30.0
PIDS_SHOWN_MAX = 8


def roles(shape: VmShape, ducks: Sequence[VmDuck]) -> list[str]:
    """The namespaces of a lab, by role."""
    names = ["sw", "host"] + (["lan"] if shape.boot == "proxy" else [])
    return names + [duck.name for duck in ducks if duck.kind == "process"]


def wiring(state: VmState) -> dict[str, list[str]]:
    """Lines for ``ip -batch`` per namespace role, in the order in which they must run."""
    shape = state.shape
    lines: dict[str, list[str]] = {"sw": []}
    for role in roles(shape, state.ducks):
        lines.setdefault(role, []).append("link set lo up")
    for domain in range(1, shape.domains + 1):
        lines["sw"] += [
            f"link add br{domain} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            f"link set br{domain} mtu {shape.mtu} up",
            f"addr add {plans.switch_address(domain)}/24 brd + dev br{domain}",
        ]
        lines["sw"] += _cable(state, domain, f"h{domain}", f"nic{domain}", "host")
        lines["host"] += [
            f"link set nic{domain} address {plans.host_mac(domain)}",
            f"link set nic{domain} up",
            f"addr add {plans.host_address(domain)}/24 brd + dev nic{domain}",
            # iPXE waits for router advertisements; nothing else uses IPv6 (RFC 3849 addresses).
            f"addr add 2001:db8:{domain}::1/64 dev nic{domain} nodad",
        ]
        if shape.boot == "proxy":
            lines["sw"] += _cable(state, domain, f"l{domain}", f"lan{domain}", "lan")
            lines["lan"] += [
                f"link set lan{domain} up",
                f"addr add {plans.router_address(domain)}/24 brd + dev lan{domain}",
                f"addr add 2001:db8:{domain}::2/64 dev lan{domain} nodad",
            ]
    for duck in state.ducks:
        _plug_in(state, duck, lines)
    return lines


def _plug_in(state: VmState, duck: VmDuck, lines: dict[str, list[str]]) -> None:
    if duck.kind == "qemu":
        lines["sw"] += [
            f"tuntap add {duck.port_name} mode tap",
            f"link set {duck.port_name} mtu {state.shape.mtu} master br{duck.domain} up",
        ]
        return
    lines["sw"] += _cable(state, duck.domain, duck.port_name, "eth0", duck.name)
    lines[duck.name] += [
        f"link set eth0 address {duck.mac}",
        "link set eth0 up",
        f"addr add {duck.address}/24 brd + dev eth0",
    ]


def _cable(state: VmState, domain: int, port: str, far_name: str, far_role: str) -> list[str]:
    """A veth pair from a bridge port to another namespace."""
    mtu = state.shape.mtu
    far = state.namespace(far_role)
    return [
        f"link add {port} mtu {mtu} type veth peer name {far_name} mtu {mtu} netns {far}",
        f"link set {port} master br{domain} up",
    ]


def planned(state: VmState) -> VmState:
    """The state with all its namespaces on record, none of them made."""
    names = [state.namespace(role) for role in roles(state.shape, state.ducks)]
    return replace(state, namespaces=tuple(Namespace(name) for name in names))


def make(folder: LabFolder, state: VmState) -> VmState:
    """Makes all namespaces and wires. The state must be on record already."""
    for space in state.namespaces:
        with interrupts_wait():
            run_ip(["netns", "add", space.name])
            state = state.with_namespace(replace(space, inode=_inode(space)))
            save(folder, state)
    for role, lines in wiring(state).items():
        run_ip(["-n", state.namespace(role), "-batch", "-"], "\n".join(lines) + "\n")
    return state


def remove(state: VmState) -> list[str]:
    """Removes the namespaces on record and gives their names; foreign ones are left alone."""
    if state.boot_id != boot_id():
        return []  # namespaces do not outlive the machine's start
    removed = []
    for space in state.namespaces:
        if _is_half_made(space):
            space.path.unlink()
        elif is_own(space):
            run_ip(["netns", "del", space.name])
            removed.append(space.name)
    return removed


def _is_half_made(space: Namespace) -> bool:
    """True for the empty file that `ip netns add` leaves when it is killed before its last step."""
    try:
        device = space.path.stat().st_dev
    except FileNotFoundError:
        return False
    # A namespace is a file of another file system, mounted over the empty one.
    return not space.inode and device == space.path.parent.stat().st_dev


def is_own(space: Namespace) -> bool:
    """True if the namespace exists and is the one on record.

    Without an inode on record the lab was interrupted between making and noting it: then it is
    ours if it has nothing but its loopback device.
    """
    inode = _inode(space)
    if not inode or space.inode:
        return bool(inode) and inode == space.inode
    return len(run_ip(["-n", space.name, "-oneline", "link", "show"]).splitlines()) <= 1


def is_made(state: VmState) -> bool:
    """True if every namespace of the lab is there."""
    return state.boot_id == boot_id() and all(
        space.inode and _inode(space) == space.inode for space in state.namespaces
    )


def foreign_processes(state: VmState) -> dict[str, list[int]]:
    """Pids by namespace: called when the lab's own processes have ended, these are others'."""
    found = {}
    for space in state.namespaces:
        if not _is_half_made(space) and is_own(space):
            pids = [int(word) for word in run_ip(["netns", "pids", space.name]).split()]
            if pids:
                found[space.name] = pids
    return found


def _inode(space: Namespace) -> int:
    try:
        return space.path.stat().st_ino
    except FileNotFoundError:
        return 0


def inside(namespace: str, arguments: Sequence[str]) -> list[str]:
    """A command line that runs in a namespace, with the same pid."""
    return [program("ip") or "ip", "netns", "exec", namespace, *arguments]


def is_inside(namespace: str) -> bool:
    """True if this process is in the namespace already."""
    own = Path("/proc/self/ns/net").stat()
    try:
        other = Namespace(namespace).path.stat()
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino)


def run_ip(arguments: Sequence[str], lines: str = "") -> str:
    """Runs iproute2; its output. Raises LabError with its own words."""
    command = [program("ip") or "ip", *arguments]
    detail(f"running {' '.join(command)}")
    try:
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=IP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(command)} did not end within {IP_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        words = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise LabError(f"{' '.join(command)} failed: {words or f'exit code {done.returncode}'}")
    return done.stdout
