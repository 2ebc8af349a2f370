"""Filters and modules of the playbooks: domains from an inventory, CPU lists, read-back, files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import load_playbook_file
from hypothesis import given
from hypothesis import strategies as st

from duckctl.doctor.machine import port_name

fleet: Any = load_playbook_file("filter_plugins/duck_fleet")


def variables(subnet: str, host: str, **more: Any) -> dict[str, Any]:
    return {"domain_subnet": subnet, "domain_host_address": host, **more}


HOSTVARS = {
    "d1": variables("10.1.0.0/24", "10.1.0.1", domain_host_mac="A8-B8-E0-00-00-01"),
    "d2": variables("10.1.0.0/24", "10.1.0.1", domain_host_mac="A8-B8-E0-00-00-01"),
    "d3": variables(
        "10.2.0.0/25",
        "10.2.0.1",
        domain_host_pci="0000:41:00.1",
        domain_mtu=9000,
        domain_device="pci",
        domain_cpu=3,
    ),
}
GROUPS = {
    "all": ["host", "d1", "d2", "d3"],
    "ducks": ["d1", "d2", "d3"],
    "canary": ["d1", "d3"],
    "domain1": ["d1", "d2"],
    "domain2": ["d3"],
    "gpu_host": ["host"],
}


def test_domains() -> None:
    """A domain is the ducks of one subnet, with its group's name."""
    first, second = fleet.duck_domains(HOSTVARS, GROUPS)
    assert (first["name"], first["ducks"], first["prefix"]) == ("domain1", ["d1", "d2"], 24)
    assert first["mac"] == "a8:b8:e0:00:00:01"
    assert (first["nic"], first["mtu"], first["pci"]) == ("duck-domain1", 1500, "")
    assert (second["name"], second["broadcast"], second["mtu"]) == ("domain2", "10.2.0.127", 9000)
    assert (first["device"], first["cpu"], second["device"], second["cpu"]) == ("", None, "pci", 3)


def test_long_names_of_domains_differ() -> None:
    """A port's name has 15 characters: those of production-1 and production-2 end in a hash; doctor
    looks for the names that the playbooks give."""
    subnets = {"d1": "10.1.0.0/24", "d2": "10.2.0.0/24"}
    hostvars = {duck: variables(subnet, subnet[:-5] + ".1") for duck, subnet in subnets.items()}
    groups = {"ducks": ["d1", "d2"], "production-1": ["d1"], "production-2": ["d2"]}
    names = [domain["nic"] for domain in fleet.duck_domains(hostvars, groups)]
    assert names == ["duck-pra12972f8", "duck-pr38202342"]


@given(st.text("abcdefghij-0123456789", min_size=1, max_size=40))
def test_doctor_and_playbooks_give_a_port_the_same_name(domain: str) -> None:
    """The rule is written twice, since plain Ansible has no duckctl; a name is one of Linux."""
    assert port_name(domain) == fleet.port_name(domain)
    assert len(port_name(domain)) <= 15
    assert port_name(domain) == f"duck-{domain}" or len(domain) > 10


def test_short_pci_address() -> None:
    """``41:00.0`` is what it is for boot and doctor: in segment 0; sysfs and udev want it whole."""
    values = HOSTVARS["d3"] | {"domain_host_pci": "41:00.1"}
    (domain,) = fleet.duck_domains({"d3": values}, {"ducks": ["d3"], "domain2": ["d3"]})
    assert domain["pci"] == "0000:41:00.1"


INVENTORY = """\
all:
  children:
    ducks:
      children:
        left:
          vars: {domain_subnet: 10.1.0.0/24, domain_host_address: 10.1.0.1}
          hosts: {d1: {}, d2: {}}
        right:
          vars: {domain_subnet: 10.2.0.0/24, domain_host_address: 10.2.0.1}
          hosts: {d3: {}}
    domain-fast: {hosts: {d1: {}, d2: {}}}
    canary: {hosts: {d3: {}}}
"""


def test_groups_for_patterns_rename_no_port(tmp_path: Path) -> None:
    """A domain has the name of the child of ``ducks``, whatever other groups have its ducks; here
    with the objects of Ansible itself."""
    pytest.importorskip("ansible", reason="ansible-core is not installed")
    parts = ("parsing.dataloader", "inventory.manager", "vars.manager", "vars.hostvars")
    files, groups, variables, hosts = (import_module(f"ansible.{part}") for part in parts)
    path, loader = tmp_path / "shelf.yml", files.DataLoader()
    path.write_text(INVENTORY)
    inventory = groups.InventoryManager(loader, sources=[str(path)])
    manager = variables.VariableManager(loader, inventory)
    hostvars = hosts.HostVars(inventory, manager, loader)
    domains = fleet.duck_domains(hostvars, inventory.get_groups_dict())
    assert [(d["name"], d["nic"]) for d in domains] == [
        ("left", "duck-left"),
        ("right", "duck-right"),
    ]


def test_a_name_is_not_guessed() -> None:
    """Where Ansible does not tell which group is the domain, the inventory has to name the port."""
    groups = GROUPS | {"canary": ["d3"]}
    with pytest.raises(ValueError, match=r"canary, domain2 have the same ducks.*domain_host_nic"):
        fleet.duck_domains(HOSTVARS, groups)
    named = HOSTVARS | {"d3": HOSTVARS["d3"] | {"domain_host_nic": "port2"}}
    assert [domain["nic"] for domain in fleet.duck_domains(named, groups)][1] == "port2"


def test_domain_without_a_group() -> None:
    """Ducks of one subnet that no group has are refused, with their names."""
    with pytest.raises(ValueError, match="no group has exactly the ducks d1, d2"):
        fleet.duck_domains(HOSTVARS, {"ducks": ["d1", "d2", "d3"], "domain2": ["d3"]})


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_there_and_back(numbers: set[int]) -> None:
    """What is written as a list of CPUs is read back as the same CPUs."""
    assert fleet.cpu_numbers(fleet.cpu_list(numbers)) == sorted(numbers)


def test_cpu_lists() -> None:
    """The kernel's forms, its "(null)" among them."""
    assert fleet.cpu_list([5, 2, 3, 4, 9]) == "2-5,9"
    assert fleet.cpu_numbers("(null)") == fleet.cpu_numbers("\n") == []


def test_missing_arguments() -> None:
    """An argument counts as active only as a whole word with its value."""
    running = "BOOT_IMAGE=/vmlinuz isolcpus=2-5 hugepages=512 quiet"
    assert fleet.missing_arguments(["isolcpus=2-5", "hugepages=51"], running) == ["hugepages=51"]


def test_kernel_files() -> None:
    """Settings and pages are the kernel's files; a dot in a name does not become a folder."""
    arp = fleet.duck_arp_values([{"nic": "dom.1"}], {"arp_ignore": "1"})
    assert arp == {"/proc/sys/net/ipv4/conf/dom.1/arp_ignore": "1"}
    (path,) = fleet.duck_hugepage_values([1], 2048, 512)
    assert path == "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"


class Stingy(type(Path())):  # type: ignore[misc]
    """A kernel file that grants at most 100, as hugepages do when memory is fragmented."""

    def write_text(self, data: str, *rest: Any, **named: Any) -> int:
        return int(super().write_text(str(min(int(data), 100)), *rest, **named))


def test_t56_pages_that_are_not_granted(tmp_path: Path) -> None:
    """T56 and A31: fewer pages than asked for is a failure with both figures, and everything that
    was written is set back."""
    module: Any = load_playbook_file("library/duck_kernel_value")
    node0, node1 = Stingy(tmp_path / "node0"), Stingy(tmp_path / "node1")
    for path in (node0, node1):
        path.write_text("8")
    before = {node0: "8", node1: "8"}
    with pytest.raises(module.KernelValueError, match=r"node1: 512 wanted, the kernel gave 100"):
        module.write_all({node0: "64", node1: "512"}, before, "at_least")
    assert (node0.read_text(), node1.read_text()) == ("8", "8")
    module.write_all({node0: "64"}, before, "at_least")
    assert node0.read_text() == "64"


def test_reached() -> None:
    """``at_least`` leaves more alone, and takes no text for a number; blanks do not differ."""
    module: Any = load_playbook_file("library/duck_kernel_value")
    assert module.is_reached("600", "512", "at_least")
    assert not module.is_reached("511", "512", "at_least")
    assert not module.is_reached("many", "512", "at_least")
    assert module.is_reached("4096\t16384  4194304", "4096 16384 4194304", "equal")
