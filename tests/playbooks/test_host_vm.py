"""The host's roles on a real machine: Debian with systemd, GRUB and an IOMMU, in QEMU, over ssh."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from debian_image import is_built, mirror, mirror_answers, missing_for_build
from debian_vm import PORTS, SHARED_PORT, DebianVm

from duckctl.boot.dnsmasq import render_config, render_hosts
from duckctl.boot.plan import BootPaths, plan_boot
from duckctl.health import probe
from duckctl.inventory import load_inventory
from duckctl.keys import make_key, public_path
from duckctl.native import native_path
from duckctl.playbook import PlaybookResult, run_playbook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        bool(missing_for_build()), reason=f"missing: {', '.join(missing_for_build())}"
    ),
]
pytest.importorskip("ansible_runner", reason="ansible-runner is not installed")

INVENTORY = """\
all:
  vars: {{fleet_name: machine}}
  children:
    gpu_host:
      hosts:
        machine:
          ansible_host: 127.0.0.1
          ansible_port: {port}
          ansible_user: root
          ansible_ssh_private_key_file: {key}
    ducks:
      children:
        domain1:
          vars:
            domain_subnet: 10.21.1.0/24
            domain_host_address: 10.21.1.1
            domain_host_pci: "{pci[0]}"
            domain_mtu: 9000
          hosts: {{d01: {{duck_address: 10.21.1.11}}}}
        domain2:
          vars:
            domain_subnet: 10.21.2.0/24
            domain_host_address: 10.21.2.1
            domain_host_pci: "{pci[1]}"
            domain_host_nic: ducks-east
          hosts: {{d02: {{duck_address: 10.21.2.11}}}}
"""
# The service's own program needs more memory than this machine has; what it is bound to does not.
STAND_IN = "#!/bin/sh\nexec sleep infinity\n"
BOOT_FOLDER = Path("/var/lib/duckctl/boot")
VARIABLES: dict[str, Any] = {
    "dpdk_enabled": True,
    "dpdk_hugepages_per_node": 48,
    "cpu_isolation_cpus": "1",
    "serve_model": "/srv/a model",
    "serve_duckctl": "/srv/duckctl",
    "serve_inventory": "/srv/fleet.yml",
    "serve_state": "stopped",
}
# Another program that takes a port back as soon as vfio-pci has it.
SABOTEUR = "/etc/udev/rules.d/99-saboteur.rules"
SABOTEUR_RULE = (
    f'ACTION=="bind", SUBSYSTEM=="pci", KERNEL=="{PORTS[1]}", DRIVER=="vfio-pci", '
    f"RUN+=\"/bin/sh -c 'echo {PORTS[1]} > /sys/bus/pci/drivers/vfio-pci/unbind'\""
)
# Everything that roles write, and what the kernel says; not what a boot or a login changes.
TREE = (
    "find /etc /usr/local /boot/grub /var/lib/systemd -xdev ! -name random-seed"
    " \\( -type f -exec sha256sum {} + -o -printf '%y %m %p %l\\n' \\) | sort;"
    " ip -o link | cut -d' ' -f2; cat /proc/cmdline /sys/kernel/mm/hugepages/*/nr_hugepages;"
    " cat /proc/sys/net/ipv4/conf/*/arp_ignore; systemctl list-unit-files --no-pager"
)


BOTH_BACK = " && ".join(f"test -e /sys/bus/pci/drivers/virtio-pci/{pci}" for pci in PORTS)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianVm]:
    """A machine as Debian's installer leaves it."""
    if not is_built() and not mirror_answers():
        pytest.skip(f"the Debian mirror {mirror()} does not answer")
    with DebianVm(tmp_path_factory.mktemp("machine")) as vm:
        yield vm


def play(vm: DebianVm, name: str = "host", check: bool = False, **more: Any) -> PlaybookResult:
    path = vm.folder / "fleet.yml"
    path.write_text(INVENTORY.format(port=vm.port, key=vm.key, pci=PORTS))
    source = vm.folder / "boot"
    source.mkdir(exist_ok=True)
    plan = replace(plan_boot(load_inventory(path)), paths=BootPaths(BOOT_FOLDER), interfaces={})
    (source / "dnsmasq.conf").write_text(render_config(plan))
    (source / "hosts").write_text(render_hosts(plan))
    (source / "tftp").mkdir(exist_ok=True)
    (source / "tftp/first").write_text("first stage")
    variables = VARIABLES | {"pxe_source": str(source)} | more
    return run_playbook(name, path, "gpu_host", variables, check, check)


def write_file(vm: DebianVm, path: str, text: str, mode: str = "644") -> None:
    vm.say(f"printf %s {shlex.quote(text)} > {path} && chmod {mode} {path}")


def driver(vm: DebianVm, pci: str) -> str:
    return vm.say(f"basename $(readlink /sys/bus/pci/devices/{pci}/driver) 2>&1")


def addresses(vm: DebianVm) -> dict[str, str]:
    """Interface -> address and MTU."""
    lines = vm.say("ip -o -4 address show; ip -o link show").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        words = line.split()
        name = words[1].rstrip(":")
        if words[2] == "inet":
            found[name] = words[3]
        elif name in found:
            found[name] += f" {words[words.index('mtu') + 1]}"
    return {name: text for name, text in found.items() if not text.startswith("127.")}


def wait_for_address(vm: DebianVm) -> None:
    """systemd-networkd sets up a port that has come back in its own time."""
    vm.say("for i in $(seq 50); do ip -4 a s ducks-east | grep -q inet && break; sleep .2; done")


def answers_tftp(vm: DebianVm) -> bool:
    """dnsmasq gives the first stage (RFC 1350: read request, then a data packet)."""
    program = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10); "
        "s.sendto(bytes([0, 1]) + b'first' + bytes(1) + b'octet' + bytes(1), ('10.21.1.1', 69)); "
        "print(s.recv(600)[4:].decode())"
    )
    return vm.say(f"python3 -c {shlex.quote(program)}") == "first stage"


DOMAINS = {"duck-domain1": "10.21.1.1/24 9000", "ducks-east": "10.21.2.1/24 1500"}


def test_t42_t47_t60_t64_host_from_bare_to_ready(machine: DebianVm) -> None:
    """Check mode changes nothing; a binding that fails leaves every port as it was; after a restart
    names, addresses, hugepages and isolation are there; the second run changes nothing (T36, T42,
    T47, T56, T60, T61, T64)."""
    write_file(machine, "/srv/duckctl", STAND_IN, "755")
    write_file(machine, "/srv/fleet.yml", "all:\n")
    before = machine.say(TREE)
    checked = play(machine, check=True)
    assert (checked.bad, machine.say(TREE)) == ((), before)
    assert checked.changed >= 4

    write_file(machine, SABOTEUR, SABOTEUR_RULE + "\n")
    machine.say("udevadm control --reload")
    failed = play(machine, dpdk_bind="boot")
    (host,) = failed.bad
    assert "was bound to vfio-pci, but now no driver has it" in host.problem
    assert "all ports are back as they were" in host.problem
    assert [driver(machine, pci) for pci in PORTS] == ["virtio-pci"] * 2
    machine.say(
        "for i in $(seq 50); do ip -4 a s ducks-east | grep -q inet && break; sleep .2; done"
    )
    assert DOMAINS.items() <= addresses(machine).items()
    machine.say(f"rm {SABOTEUR}; udevadm control --reload")

    boot = machine.say("cat /proc/sys/kernel/random/boot_id")
    ready = play(machine, host_restart=True)
    assert ready.bad == ()
    assert machine.say("cat /proc/sys/kernel/random/boot_id") != boot
    assert DOMAINS.items() <= addresses(machine).items()
    assert machine.say("cat /sys/devices/system/node/node0/hugepages/*2048kB/nr_hugepages") == "48"
    assert machine.say("cat /sys/devices/system/cpu/{isolated,nohz_full}").split() == ["1", "1"]
    assert "IRQBALANCE_BANNED_CPULIST=1" in machine.say("systemctl show irqbalance -p Environment")

    assert answers_tftp(machine)

    again = play(machine)
    assert (again.bad, again.changed) == ((), 0)
    verified = play(machine, "verify")
    assert (verified.bad, verified.changed) == ((), 0)


def test_ports_are_dpdks_while_serving(machine: DebianVm) -> None:
    """Starting the serve service gives both ports to vfio-pci, whose groups are viable; stopping it
    gives them back with names and addresses, and network boot is answered again; a group with a
    foreign device is refused (T60)."""
    machine.say("systemctl start duck-serve.service")
    assert [driver(machine, pci) for pci in PORTS] == ["vfio-pci"] * 2
    assert len(machine.say("ls /dev/vfio").split()) == 3
    machine.say("systemctl stop duck-serve.service")
    machine.say(f"for i in $(seq 50); do {BOTH_BACK} && break; sleep .2; done")
    assert [driver(machine, pci) for pci in PORTS] == ["virtio-pci"] * 2
    wait_for_address(machine)
    assert DOMAINS.items() <= addresses(machine).items()
    assert answers_tftp(machine)
    refused = machine.say(
        f"python3 /usr/local/lib/duckctl/duck_pci.py bind {SHARED_PORT} 2>&1; true"
    )
    assert "is not viable: it also has 0000:02:02.0 (virtio-pci)" in refused
    assert driver(machine, SHARED_PORT) == "virtio-pci"


LINUX_DUCK = """\
all:
  vars: {{fleet_name: linux}}
  children:
    ducks:
      children:
        domain1:
          vars: {{domain_subnet: {subnet}, domain_host_address: {host}}}
          hosts:
            duck01:
              duck_address: {address}
              duck_port: {duck_port}
              ansible_host: 127.0.0.1
              ansible_port: {port}
              ansible_user: root
              ansible_ssh_private_key_file: {key}
"""


def linux_fleet(vm: DebianVm, subnet: str, host: str, address: str, duck_port: int) -> Path:
    path = vm.folder / f"linux-{duck_port}.yml"
    where = {"subnet": subnet, "host": host, "address": address, "duck_port": duck_port}
    path.write_text(LINUX_DUCK.format(port=vm.port, key=vm.key, **where))
    return path


def test_linux_duck(machine: DebianVm) -> None:
    """A node that keeps its Linux gets duckd as a service, which answers HELLO through the network;
    the second run changes nothing."""
    key = machine.folder / "fleet.key"
    make_key(key)
    # What user-mode networking calls its addresses. Outside the duck is a port of 127.0.0.1, and
    # answers go there, whichever loopback address asked.
    fleet = linux_fleet(machine, "10.0.2.0/24", "10.0.2.2", "10.0.2.15", 7211)
    # A copy: whoever builds the native parts meanwhile does not change what is installed.
    duckd = machine.folder / "duckd"
    shutil.copy2(native_path("duckd"), duckd)
    variables = {
        "duck_linux_duckd": str(duckd),
        "duck_linux_fleet_public": str(public_path(key)),
        "duck_linux_poll": "sleep",
        "duck_linux_hugepages": 56,
    }
    first, second = (run_playbook("ducks", fleet, "duck01", variables) for _ in range(2))
    assert (first.bad, second.bad, second.changed) == ((), (), 0)
    assert first.changed >= 5
    outside = load_inventory(
        linux_fleet(machine, "127.0.0.0/24", "127.0.0.1", "127.0.0.1", machine.port)
    )
    (duck,) = probe(outside, outside.ducks, 20)["ducks"]
    assert (duck["reachable"], duck["name"], duck["build_ok"]) == (True, "duck01", True)
    assert machine.say("cat /proc/sys/vm/nr_hugepages") == "56"
