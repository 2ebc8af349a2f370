"""Inventories load to frozen fleets, and every mistake in one is named with its line."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from duckctl.errors import ExitCode, UsageError
from duckctl.fleet_file import fleet_document
from duckctl.inventory import InventoryError, Power, load_inventory

ROOT = Path(__file__).resolve().parents[2]
# Of the environment that runs the tests, which need not be on the PATH.
ANSIBLE_INVENTORY = shutil.which("ansible-inventory", path=Path(sys.executable).parent)
BAD = sorted((Path(__file__).parent / "bad_inventories").glob("*.yml"))
SHELF = """
all:
  children:
    gpu_host:
      hosts:
        shelf-host: {ansible_connection: local, host_gpu: RTX 4090}
    ducks:
      vars: {duck_cores: 4, duck_power: {backend: wol}, domain_mtu: 9000}
      children:
        near:
          vars: {domain_subnet: 10.0.1.0/24, domain_host_address: 10.0.1.1, duck_cores: 8}
          hosts:
            a: {duck_address: 10.0.1.2, duck_slot: 1}
            b: {duck_address: 10.0.1.3, duck_slot: 0, duck_cores: 2, duck_power: {backend: none}}
        far:
          vars: {domain_subnet: 10.0.2.0/24, domain_host_address: 10.0.2.1, domain_mtu: 1500,
                 domain_dispatch: broadcast}
          hosts:
            c: {duck_address: 10.0.2.2, duck_slot: 2}
    upstairs:
      hosts: {a: , c: }
"""


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_every_mistake_is_named_with_its_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    expected = [
        line.removeprefix("# expect: ")
        for line in text.splitlines()
        if line.startswith("# expect: ")
    ]
    assert expected
    with pytest.raises(InventoryError) as caught:
        load_inventory(path)
    assert caught.value.problems == expected
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(path) in caught.value.message


def test_a_file_of_brackets_is_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "brackets.yml"
    path.write_text("# brackets\n" + "[" * 20_000, encoding="utf-8")
    with pytest.raises(InventoryError) as caught:
        load_inventory(path)
    assert caught.value.problems == ["line 2: nested too deeply"]


def test_a_file_of_ranges_ends_before_the_memory_does(tmp_path: Path) -> None:
    """One name of many is too many: what follows isn't read, whatever it would multiply to."""
    hosts = "".join(f'"a{n}-[0001:4096]": , ' for n in range(200))
    path = tmp_path / "shelf.yml"
    path.write_text(SHELF.replace("hosts: {a: , c: }", f"hosts: {{{hosts}}}"), encoding="utf-8")
    with pytest.raises(InventoryError) as caught:
        load_inventory(path)
    assert len(caught.value.problems) <= 1000
    text = SHELF.replace("          hosts:\n            c:", f"          hosts: {{{hosts}}}\n#")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InventoryError, match="more than 4096 names with this one"):
        load_inventory(path)


def test_values_come_from_duck_then_domain_then_group(tmp_path: Path) -> None:
    path = tmp_path / "shelf.yml"
    path.write_text(SHELF, encoding="utf-8")
    fleet = load_inventory(path)
    assert fleet.name == "shelf"
    assert fleet.key_file == tmp_path / "fleet.key"
    assert fleet.host is not None
    assert (fleet.host.name, fleet.host.gpu) == ("shelf-host", "RTX 4090")
    assert fleet.host.ansible == {"ansible_connection": "local"}
    assert [(d.name, d.slot, d.cores, d.domain.name) for d in fleet.ducks] == [
        ("b", 0, 2, "near"),
        ("a", 1, 8, "near"),
        ("c", 2, 4, "far"),
    ]
    assert [d.power for d in fleet.ducks] == [
        (Power("none", {}),),
        (Power("wol", {}),),
        (Power("wol", {}),),
    ]
    assert [(d.name, d.mtu, d.call_address) for d in fleet.domains] == [
        ("near", 9000, None),
        ("far", 1500, IPv4Address("10.0.2.255")),
    ]
    assert fleet.groups["upstairs"] == ("a", "c")


def test_a_fleet_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "shelf.yml"
    path.write_text(SHELF, encoding="utf-8")
    fleet = load_inventory(path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fleet.ducks[0].name = "other"  # type: ignore[misc]


def test_the_reference_rack_has_32_ducks_in_4_domains() -> None:
    fleet = load_inventory(ROOT / "inventory" / "rack32.yml")
    assert len(fleet.ducks) == 32
    assert [duck.slot for duck in fleet.ducks] == list(range(32))
    assert [str(domain.subnet) for domain in fleet.domains] == [
        f"10.21.{n}.0/24" for n in (1, 2, 3, 4)
    ]
    per_domain = [sum(d.domain == domain for d in fleet.ducks) for domain in fleet.domains]
    assert per_domain == [8, 8, 8, 8]
    assert fleet.warnings == ()
    assert fleet.groups["canary"] == ("duck01", "duck09", "duck10")


def test_the_fleet_file_has_the_agreed_shape() -> None:
    fleet = load_inventory(ROOT / "inventory" / "lab.yml")
    document = json.loads(json.dumps(fleet_document(fleet)))
    assert document == {
        "schema_version": 1,
        "name": "lab",
        "key_file": str(ROOT / "inventory" / "fleet.key"),
        "pins_file": str(ROOT / "inventory" / "fleet.pins.json"),
        "domains": [
            {
                "name": f"domain{n}",
                "bind_address": f"127.21.{n}.1",
                "call_address": None,
                "mtu": 1500,
                "device": None,
                "cpu": None,
            }
            for n in (1, 2)
        ],
        "ducks": [
            {
                "name": f"d{slot + 1:02}",
                "domain": f"domain{slot // 2 + 1}",
                "address": f"127.21.{slot // 2 + 1}.{11 + slot % 2}",
                "port": 7211,
                "slot": slot,
                "identity": "pinned",
            }
            for slot in range(4)
        ],
    }


def test_a_domain_on_its_own_nic_queue() -> None:
    """domain_device: pci takes the NIC's PCI address; without one the mistake is named."""
    fleet = load_inventory(ROOT / "inventory" / "rack32.yml")

    def first_domain(**changes: object) -> dict[str, object]:
        domain = dataclasses.replace(fleet.domains[0], **changes)  # type: ignore[arg-type]
        duck = dataclasses.replace(fleet.ducks[0], domain=domain)
        document = fleet_document(dataclasses.replace(fleet, domains=(domain,)), [duck])
        return dict(document["domains"][0])

    told = first_domain(device="pci", host_pci="0000:41:00.0", cpu=5)
    assert (told["device"], told["cpu"]) == ("0000:41:00.0", 5)
    assert first_domain(device="net_tap,iface=t0")["device"] == "net_tap,iface=t0"
    with pytest.raises(UsageError, match="domain_host_pci is missing"):
        first_domain(device="pci", host_pci=None)


def test_a_part_of_a_fleet_is_renumbered_in_slot_order() -> None:
    fleet = load_inventory(ROOT / "inventory" / "rack32.yml")
    document = fleet_document(fleet, [fleet.ducks[20], fleet.ducks[9]])
    assert [(d["name"], d["slot"]) for d in document["ducks"]] == [("duck10", 0), ("duck21", 1)]
    assert [d["name"] for d in document["domains"]] == ["domain2", "domain3"]
    assert document["domains"][0]["call_address"] == "10.21.2.255"


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read inventory .*nothing\.yml: No such file"):
        load_inventory(tmp_path / "nothing.yml")


def test_warnings_name_what_bites_later(tmp_path: Path) -> None:
    path = tmp_path / "shelf.yml"
    text = SHELF.replace(
        "domain_host_address: 10.0.1.1,", "domain_host_address: 10.0.1.1, domain_host_nic: enp1s0,"
    ).replace("{duck_address: 10.0.1.2,", '{duck_address: 10.0.1.2, duck_mac: "52:54:00:00:00:01",')
    path.write_text(text, encoding="utf-8")
    assert load_inventory(path).warnings == (
        "near: interface names change with kernels; add domain_host_pci or domain_host_mac",
        "b: without duck_mac it cannot be booted from the network",
        "a: 52:54:00:00:00:01 is locally administered; cheap adapters share such ones",
        "c: without duck_mac it cannot be booted from the network",
    )


@pytest.mark.skipif(ANSIBLE_INVENTORY is None, reason="ansible-core not installed")
@pytest.mark.parametrize("name", ["rack32.yml", "lab.yml"])
def test_ansible_reads_the_examples_too(name: str) -> None:
    path = ROOT / "inventory" / name
    result = subprocess.run(
        [str(ANSIBLE_INVENTORY), "-i", str(path), "--list"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "[WARNING]" not in result.stderr
    document = json.loads(result.stdout)
    fleet = load_inventory(path)
    variables = document["_meta"]["hostvars"]
    for duck in fleet.ducks:
        assert variables[duck.name]["duck_address"] == str(duck.address)
        assert variables[duck.name]["domain_subnet"] == str(duck.domain.subnet)
