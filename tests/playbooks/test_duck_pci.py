"""Ports are found, and bound to vfio-pci all or none, before a kernel that behaves as Linux."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kernel import Device, FakeKernel, FakeSysfs, duck_pci

A, B, C = "0000:41:00.0", "0000:41:00.1", "0000:41:00.2"


def ports(**changes: set[str]) -> list[Device]:
    """Two E810 ports on node 1 and a management port on node 0."""
    return [
        Device(A, "ice", "7", "ens1f0", "a8:b8:e0:00:00:01", 1, refuses=changes.get("a", set())),
        Device(B, "ice", "8", "ens1f1", "a8:b8:e0:00:00:02", 1, refuses=changes.get("b", set())),
        Device("0000:02:00.0", "igc", "3", "eno1", "a8:b8:e0:00:00:09", 0),
    ]


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    """The usual machine."""
    fake = FakeKernel(tmp_path, ports())
    fake.routes("eno1")
    return fake


def drivers(kernel: FakeKernel, *pcis: str) -> list[str]:
    return [kernel.driver(pci) for pci in pcis]


def test_bind_and_release(kernel: FakeKernel) -> None:
    """Ports go to vfio-pci, a second time changes nothing, and they come back with their names."""
    sysfs = FakeSysfs(kernel)
    assert duck_pci.bind_ports(sysfs, [A, B], set()) == [A, B]
    assert drivers(kernel, A, B) == ["vfio-pci", "vfio-pci"]
    assert duck_pci.bind_ports(sysfs, [A, B], set()) == []
    assert duck_pci.release_ports(sysfs, [A, B]) == [A, B]
    assert drivers(kernel, A, B) == ["ice", "ice"]
    assert duck_pci.read_port(sysfs, A).interface == "ens1f0"
    assert duck_pci.release_ports(sysfs, [A, B]) == []


def test_t61_only_driver_override_is_used(kernel: FakeKernel) -> None:
    """T61: no id is written to new_id (it would take siblings), and the override is cleared by an
    empty line when a port is given back."""
    sysfs = FakeSysfs(kernel)
    duck_pci.bind_ports(sysfs, [A], set())
    assert drivers(kernel, A, B) == ["vfio-pci", "ice"]
    duck_pci.release_ports(sysfs, [A])
    names = {name.rsplit("/", 1)[1] for name, _ in kernel.writes}
    assert names == {"driver_override", "unbind", "drivers_probe"}
    overrides = [text for name, text in kernel.writes if name.endswith("driver_override")]
    assert overrides == ["vfio-pci\n", "\n"]
    assert kernel.modules == ["vfio-pci"]


def test_t60_group_that_is_not_viable(tmp_path: Path) -> None:
    """T60: every device of the group that stands in the way is named, and nothing is touched."""
    machine = [
        *ports(),
        Device("0000:41:08.0", "iavf", "7"),
        Device("0000:41:09.0", "nvme", "7", kind="0x010802"),
        Device("0000:40:01.0", "pcieport", "7", kind="0x060400"),
    ]
    kernel = FakeKernel(tmp_path, machine)
    with pytest.raises(duck_pci.PciError) as caught:
        duck_pci.bind_ports(FakeSysfs(kernel), [A], set())
    assert "group 7 of 0000:41:00.0 is not viable" in str(caught.value)
    assert "0000:41:08.0 (iavf), 0000:41:09.0 (nvme)" in str(caught.value)
    assert "0000:40:01.0" not in str(caught.value)
    assert kernel.writes == []


def test_ports_of_one_group_go_together(tmp_path: Path) -> None:
    """Two ports in one group are no obstacle to each other when both are wanted."""
    machine = ports()
    machine[1].group = "7"
    sysfs = FakeSysfs(FakeKernel(tmp_path, machine))
    assert duck_pci.binding_problems(sysfs, [A, B], set()) == []
    assert "is not viable" in duck_pci.binding_problems(sysfs, [A], set())[0]


@pytest.mark.parametrize("who", ["a", "b"])
def test_binding_that_fails_leads_back(tmp_path: Path, who: str) -> None:
    """If one port does not get to vfio-pci, all are with their old drivers again, by name."""
    kernel = FakeKernel(tmp_path, ports(**{who: {"vfio-pci"}}))
    with pytest.raises(duck_pci.PciError, match="all ports are back as they were"):
        duck_pci.bind_ports(FakeSysfs(kernel), [A, B], set())
    assert drivers(kernel, A, B) == ["ice", "ice"]
    assert duck_pci.read_port(FakeSysfs(kernel), A).interface == "ens1f0"
    last = {name: text for name, text in kernel.writes if name.endswith("driver_override")}
    assert set(last.values()) == {"\n"}


def test_vfio_is_asked_whether_the_group_is_viable(kernel: FakeKernel) -> None:
    """A port that is bound, but in a group that VFIO does not accept, is rolled back too."""
    kernel.unviable = {"8"}
    with pytest.raises(
        duck_pci.PciError, match=r"group 8 of 0000:41:00.1 is not viable; all ports"
    ):
        duck_pci.bind_ports(FakeSysfs(kernel), [A, B], set())
    assert drivers(kernel, A, B) == ["ice", "ice"]


def test_a_port_that_does_not_come_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When even the way back fails, the message says which port is not back."""
    monkeypatch.setattr(duck_pci, "SETTLE_S_MAX", 0.0)
    kernel = FakeKernel(tmp_path, ports())
    kernel.devices[A].refuses = {"vfio-pci", "ice"}
    with pytest.raises(duck_pci.PciError, match=r"NOT back: 0000:41:00.0"):
        duck_pci.bind_ports(FakeSysfs(kernel), [A], set())


def test_the_way_in_is_never_cut(kernel: FakeKernel) -> None:
    """The port of the default route, and that of the connection, are refused."""
    sysfs = FakeSysfs(kernel)
    assert (
        "by which this host is reached"
        in duck_pci.binding_problems(sysfs, ["0000:02:00.0"], set())[0]
    )
    assert "ens1f0, by which" in duck_pci.binding_problems(sysfs, [A], {"ens1f0"})[0]


def test_no_iommu(tmp_path: Path) -> None:
    """Without an IOMMU group the message says what to turn on."""
    kernel = FakeKernel(tmp_path, [Device(A, "ice", "", "ens1f0")])
    (problem,) = duck_pci.binding_problems(FakeSysfs(kernel), [A], set())
    assert "VT-d" in problem and "intel_iommu=on" in problem


def test_bifurcated_ports_stay(tmp_path: Path) -> None:
    """A port that DPDK shares with the kernel (mlx5) is never unbound."""
    kernel = FakeKernel(tmp_path, [Device(A, "mlx5_core", "7", "ens1f0")])
    assert duck_pci.bind_ports(FakeSysfs(kernel), [A], set()) == []
    assert kernel.driver(A) == "mlx5_core"


def test_t36_ports_are_found_by_address_or_mac(kernel: FakeKernel) -> None:
    """T36: the PCI address decides, else the MAC; a name never does. What is missing is told."""
    sysfs = FakeSysfs(kernel)
    assert duck_pci.find_port(sysfs, B, "").interface == "ens1f1"
    assert duck_pci.find_port(sysfs, "", "a8:b8:e0:00:00:01").pci == A
    with pytest.raises(duck_pci.PciError, match=r"no PCI device 0000:99:00.0.*ens1f0"):
        duck_pci.find_port(sysfs, "0000:99:00.0", "")
    with pytest.raises(duck_pci.PciError, match=r"no network port has the MAC 00:.*ens1f1"):
        duck_pci.find_port(sysfs, "", "00:00:00:00:00:01")


def test_t58_the_node_of_each_port(tmp_path: Path) -> None:
    """T58: ports say their NUMA node; a machine with one node says -1, which is node 0."""
    machine = ports()
    machine[2].node = -1
    sysfs = FakeSysfs(FakeKernel(tmp_path, machine))
    assert [port.numa_node for port in duck_pci.network_ports(sysfs)] == [0, 1, 1]


def test_virtio_interfaces(tmp_path: Path) -> None:
    """The interface of a virtio port lies one level deeper."""
    FakeKernel(tmp_path, [Device(C, "virtio-pci", "1")])
    (tmp_path / f"sys/bus/pci/devices/{C}/virtio3/net/enp1s0").mkdir(parents=True)
    assert duck_pci.read_port(duck_pci.Sysfs(tmp_path), C).interface == "enp1s0"
