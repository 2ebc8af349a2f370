"""Each check of `duckctl doctor`, on trees of machines that are well and on others that are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from fake_kernel import Device, FakeKernel
from typer.testing import CliRunner

from duckctl.commands import doctor as command
from duckctl.doctor import CHECKS, Environment, Finding, run_checks
from duckctl.doctor.checks_boot import I226_ID
from duckctl.doctor.checks_dpdk import running_package
from duckctl.inventory import Fleet, load_inventory

PCI = ("0000:41:00.0", "0000:41:00.1")
ADDRESSES = json.dumps(
    [
        {"ifname": f"duck-dom{k}", "addr_info": [{"local": f"10.21.{k}.1", "prefixlen": 24}]}
        for k in (1, 2)
    ]
)


class FixtureEnvironment(Environment):
    """A tree, and what its commands would say."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: dict[str, str] = {"ip": ADDRESSES, "dmesg": "igc 0000:02:00.0 eno1: added"}

    def command(self, words: Sequence[str]) -> str | None:
        return self.commands.get(words[0])

    def free_bytes(self, name: str) -> int:
        return 100 << 30

    def write(self, name: str, text: str | bytes) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def process(self, pid: int, name: str, **files: str) -> None:
        """A process with files of its own in /proc."""
        for file, text in {"comm": f"{name}\n", **files}.items():
            self.write(f"/proc/{pid}/{file}", text)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Two domains of two ducks each."""
    return make_fleet(tmp_path, 2)


def make_fleet(folder: Path, ducks: int, **values: str) -> Fleet:
    """A fleet of two domains with ``ducks`` each; ``values``: of all ducks."""
    lines = ["all:", "  vars: {fleet_name: two}", "  children:"]
    lines += ["    gpu_host: {hosts: {h: {host_gpu: RTX 5090}}}", "    ducks:"]
    lines += [
        "      vars: {duck_link_mbps: 2500, " + ", ".join(map(": ".join, values.items())) + "}"
    ]
    lines += ["      children:"]
    for k in (1, 2):
        subnet, prefix = (f"10.2{k}.0", 16) if ducks > 200 else (f"10.21.{k}", 24)
        lines += [f"        domain{k}:", "          vars:"]
        lines += [f"            domain_subnet: {subnet}.0/{prefix}"]
        lines += [f"            domain_host_address: {subnet}.1"]
        lines += [f'            domain_host_pci: "{PCI[k - 1]}"']
        lines += [f"            domain_host_nic: duck-dom{k}", "          hosts:"]
        first = IPv4Address(f"{subnet}.0") + 20
        lines += [f"            d{k}x{n}: {{duck_address: {first + n}}}" for n in range(ducks)]
    path = folder / "two.yml"
    path.write_text("\n".join(lines) + "\n")
    return load_inventory(path)


@pytest.fixture
def machine(tmp_path: Path) -> FixtureEnvironment:
    """A host on which nothing is wrong, DPDK wanted."""
    root = tmp_path / "root"
    ports = [
        Device(pci, "ice", str(7 + k), f"duck-dom{k + 1}", f"a8:b8:e0:00:00:0{k}", k)
        for k, pci in enumerate(PCI)
    ]
    gpu = Device("0000:01:00.0", "nvidia", "1", kind="0x030000", vendor="0x10de")
    FakeKernel(root, [*ports, gpu])
    environment = FixtureEnvironment(root)
    write = environment.write
    for k in (1, 2):
        write(f"/etc/systemd/network/20-duck-dom{k}.link", f"[Link]\nName=duck-dom{k}\n")
        for name, text in (("carrier", "1"), ("speed", "25000"), ("mtu", "1500")):
            write(f"/sys/class/net/duck-dom{k}/{name}", text)
        for key, value in (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2)):
            write(f"/proc/sys/net/ipv4/conf/duck-dom{k}/{key}", str(value))
        pages = f"/sys/devices/system/node/node{k - 1}/hugepages/hugepages-2048kB"
        write(f"{pages}/nr_hugepages", "512")
        write(f"{pages}/free_hugepages", "512")
    arguments = "intel_iommu=on iommu=pt isolcpus=managed_irq,domain,2-5 nohz_full=2-5"
    write("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz {arguments}\n")
    for file in ("isolated", "nohz_full"):
        write(f"/sys/devices/system/cpu/{file}", "2-5\n")
    write("/proc/irq/24/effective_affinity_list", "0\n")
    write("/proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0\n")
    write("/lib/firmware/intel/ice/ddp/ice.pkg", b"pkg")
    write("/usr/lib/ipxe/snponly.efi", b"MZ")
    write("/usr/lib/ipxe/ipxe.efi", b"MZ...." + I226_ID)
    devlink = {"info": {"pci": {"versions": {"running": {"fw.app.name": "ICE OS Default"}}}}}
    environment.commands |= {
        "ethtool": "driver: ice\nversion: 6.1.0\nfirmware-version: 4.90 0x80020ef8 1.3805.0\n",
        "devlink": json.dumps(devlink),
        "nvidia-smi": "NVIDIA GeForce RTX 5090, 580.95.05, 32607 MiB\n",
    }
    return environment


Ask = Callable[[str], list[Finding]]


@pytest.fixture
def ask(machine: FixtureEnvironment, fleet: Fleet) -> Ask:
    """Runs one check on the machine."""
    return lambda check: run_checks(machine, fleet, True, [check])


def bad(findings: Sequence[Finding]) -> Finding:
    """The one finding that is not well; it says what to do."""
    (finding,) = [f for f in findings if f.level != "ok"]
    assert finding.found and finding.expected and finding.next_step
    return finding


def test_nothing_is_wrong(machine: FixtureEnvironment, fleet: Fleet) -> None:
    """On the machine that is well every check answers, and all are ok."""
    findings = run_checks(machine, fleet, True)
    assert [f for f in findings if f.level != "ok"] == []
    assert {f.check for f in findings} == set(CHECKS) - {"neighbours"}


def test_without_an_inventory(machine: FixtureEnvironment) -> None:
    """Without an inventory only the machine is looked at, and what only DPDK needs is a note."""
    machine.write("/proc/cmdline", "quiet")
    for file in ("isolated", "nohz_full"):
        machine.write(f"/sys/devices/system/cpu/{file}", "")
    findings = run_checks(machine, None, None)
    assert {f.level for f in findings} == {"ok", "note"}


def test_t36_renamed_port(machine: FixtureEnvironment, ask: Ask) -> None:
    """T36: a port with another name than the inventory's, and one that only has it by luck."""
    machine.path("/etc/systemd/network/20-duck-dom1.link").unlink()
    assert "no .link file names it duck-dom1" in bad(ask("names")).found
    device = machine.path(f"/sys/bus/pci/devices/{PCI[0]}/net")
    (device / "duck-dom1").rename(device / "enp65s0f0np0")
    finding = bad(ask("names"))
    assert (finding.level, finding.found.split(",")[0]) == ("fail", "the port is enp65s0f0np0")


def test_port_that_is_not_there(tmp_path: Path, fleet: Fleet) -> None:
    """A PCI address without a device is told with the ports that there are."""
    FakeKernel(tmp_path / "r", [Device("0000:02:00.0", "igc", "3", "eno1", "a8:b8:e0:00:00:09")])
    findings = run_checks(FixtureEnvironment(tmp_path / "r"), fleet, True, ["names"])
    assert [f.found for f in findings] == [
        "no such port; here are 0000:02:00.0 eno1 a8:b8:e0:00:00:09"
    ] * 2


@pytest.mark.parametrize(
    ("file", "text", "check", "found"),
    [
        ("carrier", "0", "links", "no link"),
        ("speed", "1000", "links", "1000 Mbit/s"),
        ("mtu", "9000", "mtu", "9000"),
    ],
)
def test_links(
    machine: FixtureEnvironment, ask: Ask, file: str, text: str, check: str, found: str
) -> None:
    """No link, a link slower than a duck's, and another MTU than the domain's are named."""
    machine.write(f"/sys/class/net/duck-dom2/{file}", text)
    finding = bad(ask(check))
    assert (finding.found, finding.subject) == (found, "domain2 duck-dom2")


def test_t37_overlapping_subnets(machine: FixtureEnvironment, ask: Ask) -> None:
    """T37: another interface in a domain's subnet, and a port without its address."""
    other = [{"ifname": "wlan0", "addr_info": [{"local": "10.21.0.9", "prefixlen": 16}]}]
    machine.commands["ip"] = json.dumps(json.loads(ADDRESSES) + other)
    findings = ask("subnets")
    assert [f.found for f in findings] == ["also on wlan0 10.21.0.9/16"] * 2
    machine.commands["ip"] = json.dumps(json.loads(ADDRESSES)[:1])
    assert bad(ask("subnets")).found == "duck-dom2 has not the address 10.21.2.1"


def test_t37_arp_settings(machine: FixtureEnvironment, ask: Ask) -> None:
    """T37: each setting that lets a port answer for another is named; ``all`` can raise it."""
    machine.write("/proc/sys/net/ipv4/conf/duck-dom2/arp_ignore", "0")
    assert bad(ask("arp")).found == "duck-dom2 arp_ignore=0"
    machine.write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1")
    assert [f.level for f in ask("arp")] == ["ok"]


def test_t31_neighbour_table(machine: FixtureEnvironment, tmp_path: Path) -> None:
    """T31: with more than 500 ducks the kernel's usual table of 1024 neighbours is too small."""
    large = make_fleet(tmp_path, 300)
    threshold = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"
    machine.write(threshold, "1024")
    finding = bad(run_checks(machine, large, True, ["neighbours"]))
    assert finding.found == "gc_thresh3 = 1024 for 600 ducks"
    machine.write(threshold, "16384")
    assert [f.level for f in run_checks(machine, large, True, ["neighbours"])] == ["ok"]


def test_t41_failed_probe(machine: FixtureEnvironment, ask: Ask) -> None:
    """T41: a port whose driver could not start is in the kernel's log only, and is named."""
    line = "[    2.1] igc: probe of 0000:02:00.0 failed with error -13"
    machine.commands["dmesg"] = f"[ 1.0] usb 1-1: new device\n{line}\n"
    assert bad(ask("kernel-log")).found == line


def test_old_firmware(machine: FixtureEnvironment, ask: Ask) -> None:
    """An E810 whose firmware is older than the oldest one that DPDK was tested with."""
    machine.commands["ethtool"] = "driver: ice\nversion: 6\nfirmware-version: 3.20 0x8000d83e\n"
    assert {f.level for f in ask("firmware")} == {"warn"}


UDP_TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   1: 00000000:0043 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2
"""


def test_t32_port_in_use(machine: FixtureEnvironment, ask: Ask) -> None:
    """T32: the program on port 67 is named with its pid; the boot service's own is well."""
    machine.write("/proc/net/udp", UDP_TABLE)
    machine.process(314, "dhcpd", cmdline="/usr/sbin/dhcpd\0-f\0")
    socket = machine.path("/proc/314/fd/5")
    socket.parent.mkdir()
    socket.symlink_to("socket:[4711]")
    finding = bad(ask("ports"))
    assert (finding.subject, finding.found) == (
        "udp 67 (DHCP)",
        "used by /usr/sbin/dhcpd -f (pid 314)",
    )
    machine.write("/proc/314/cmdline", "dnsmasq\0--conf-file=/srv/fleet/boot/dnsmasq.conf\0")
    assert [f.level for f in ask("ports")] == ["ok"]


def test_t1_ipxe_without_the_i226(machine: FixtureEnvironment, tmp_path: Path) -> None:
    """T1: an iPXE without 8086:125c is a note, and an error if a duck would be given it."""
    machine.write("/usr/lib/ipxe/ipxe.efi", b"MZ, built in 2019")
    assert bad(run_checks(machine, make_fleet(tmp_path, 1), True, ["ipxe"])).level == "note"
    native = make_fleet(tmp_path, 1, duck_ipxe="ipxe")
    finding = bad(run_checks(machine, native, True, ["ipxe"]))
    assert finding.level == "fail" and "8086:125c" in finding.found and "d1x0" in finding.found


def test_no_iommu(machine: FixtureEnvironment, fleet: Fleet) -> None:
    """Without groups DPDK fails, and plain sockets do not mind."""
    for group in sorted(machine.path("/sys/kernel/iommu_groups").rglob("*"), reverse=True):
        group.rmdir()
    assert bad(run_checks(machine, fleet, True, ["iommu"])).level == "fail"
    assert bad(run_checks(machine, fleet, False, ["iommu"])).level == "note"


def test_t58_pages_on_the_wrong_node(machine: FixtureEnvironment, ask: Ask) -> None:
    """T58, T56: pages are counted on the node of each port; the message has need and have."""
    node1 = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    machine.write(node1, "16")
    finding = bad(ask("hugepages"))
    assert (finding.level, finding.subject) == ("fail", "NUMA node 1")
    assert "512 of 16 pages of 2048 kB" in finding.found and "1024 MiB" in finding.expected


def test_t57_stale_hugepage_files(machine: FixtureEnvironment, ask: Ask) -> None:
    """T57: files that a crashed program left are listed with the command that removes them; those
    that a live process has mapped are not."""
    for name in ("rtemap_0", "rtemap_1", "duck-rtemap_7"):
        machine.write(f"/dev/hugepages/{name}", b"")
    machine.process(99, "server", maps="7f00-7f20 rw-s 0 00:0f 1 /dev/hugepages/rtemap_0\n")
    finding = bad(ask("hugepage-files"))
    assert "2 files that no process has mapped" in finding.found
    assert finding.next_step.endswith("/dev/hugepages/duck-rtemap_* /dev/hugepages/rtemap_*")


def test_t57_no_free_page(machine: FixtureEnvironment, ask: Ask) -> None:
    """T57: pages that exist but are all taken are told with who holds them."""
    for name in machine.glob("/sys/devices/system/node/node0/hugepages/*/free_hugepages"):
        machine.write(name, "0")
    machine.process(99, "server", maps="7f00-7f20 rw-s 0 00:0f 1 /dev/hugepages/rtemap_0\n")
    assert "held by server" in bad(ask("hugepages")).found


def test_t62_no_ddp_package(machine: FixtureEnvironment, ask: Ask) -> None:
    """T62: a missing file, and a card that runs without its package although the file is there."""
    machine.path("/lib/firmware/intel/ice/ddp/ice.pkg").unlink()
    assert bad(ask("ddp")).subject == "package file"
    machine.write("/lib/firmware/updates/intel/ice/ddp/ice-1.3.36.0.pkg.xz", b"pkg")
    machine.commands["devlink"] = '{"info": {"pci": {"versions": {"running": {"fw": "4.9"}}}}}'
    findings = [f for f in ask("ddp") if f.level == "fail"]
    assert [f.found for f in findings] == ["the card runs no package (safe mode)"] * 2


def test_running_package() -> None:
    """devlink's answer, and what is none."""
    running = {"fw.app.name": "ICE COMMS", "fw.app": "1.3.45.0"}
    said = json.dumps({"info": {"pci/0000:41:00.0": {"versions": {"running": running}}}})
    assert running_package(said) == ("ICE COMMS", "1.3.45.0")
    assert running_package("") == running_package("{}") == ("", "")


def test_t64_isolation_that_is_not_active(machine: FixtureEnvironment, ask: Ask) -> None:
    """T64: a kernel that took nohz_full= and does nothing with it is found out."""
    machine.write("/sys/devices/system/cpu/nohz_full", "(null)\n")
    finding = bad(ask("isolation"))
    assert (finding.level, finding.subject) == ("fail", "nohz_full")
    assert "CONFIG_NO_HZ_FULL" in finding.next_step


def test_t65_interrupts_on_pollers(machine: FixtureEnvironment, ask: Ask) -> None:
    """T65: interrupts on isolated CPUs, and an irqbalance that may put them there."""
    machine.write("/proc/irq/31/effective_affinity_list", "3\n")
    assert bad(ask("irq")).found == "1 interrupts on isolated CPUs: 31"
    machine.write("/proc/irq/31/effective_affinity_list", "0\n")
    machine.process(700, "irqbalance", environ="PATH=/bin\0IRQBALANCE_BANNED_CPULIST=2-4\0")
    assert "banned CPUs: [2, 3, 4]" in bad(ask("irq")).found
    machine.process(700, "irqbalance", environ="IRQBALANCE_BANNED_CPULIST=2-5\0")
    assert [f.level for f in ask("irq")] == ["ok"]


def test_gpu(machine: FixtureEnvironment, ask: Ask) -> None:
    """Another card than the inventory's, and a card whose driver does not answer."""
    machine.commands["nvidia-smi"] = "NVIDIA L4, 550.1, 23034 MiB\n"
    assert bad(ask("gpu")).level == "warn"
    del machine.commands["nvidia-smi"]
    assert bad(ask("gpu")).found == "card 0000:01:00.0, but nvidia-smi does not answer"


def test_disk(machine: FixtureEnvironment, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full is a warning with the figure."""
    monkeypatch.setattr(machine, "free_bytes", lambda name: 5 << 30)
    assert bad(ask("disk")).found == "5.0 GiB free"


def test_command(machine: FixtureEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 when something failed, JSON with all findings, an unknown check is named."""
    machine.commands["dmesg"] = "igc 0000:02:00.0: PCIe link lost"
    monkeypatch.setattr(command, "Environment", lambda: machine)
    done = CliRunner().invoke(command.app, ["--json", "--only", "kernel-log", "--only", "iommu"])
    document = json.loads(done.stdout)
    assert (done.exit_code, document["healthy"]) == (1, False)
    assert [f["level"] for f in document["findings"]] == ["fail", "ok"]
    done = CliRunner().invoke(command.app, ["--only", "kernel-log"])
    assert done.stdout.startswith("FAILED   kernel-log: network drivers: igc")
    unknown = CliRunner().invoke(command.app, ["--only", "everything"])
    assert "there is no check 'everything'" in str(unknown.exception)


def test_on_this_machine() -> None:
    """The checks run here too, whatever they find, and end soon."""
    findings = run_checks(Environment(), None, None)
    assert {"disk", "iommu", "ports", "hugepages"} <= {f.check for f in findings}
