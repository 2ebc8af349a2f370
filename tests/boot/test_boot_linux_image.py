"""The Linux image, built from Debian's package, boots in QEMU in every way and answers HELLO."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kernel_package import real_kernel_package
from netns_kit import Net, ip, needs_namespaces
from qemu_kit import (
    NO_IPV6,
    ONLY_HTTP,
    OVMF,
    SNAKEOIL_CERTIFICATE,
    SNAKEOIL_KEY,
    guest,
    ovmf,
    secure_ovmf,
    snakeoil_key,
)
from service_kit import BOOT_S, MAC, ask, check_hello, serving

from duckctl.boot.follow import read_log
from duckctl.boot.plan import boot_paths
from duckctl.image.fleet_public import read_public
from duckctl.image.linux import KernelChoice, LinuxOptions, build_linux
from duckctl.image.manifest import ImageManifest, find_image, image_dir
from duckctl.image.signing import sign_for_secure_boot
from duckctl.image.uki import find_stub
from duckctl.inventory import Fleet, load_inventory
from duckctl.keys import make_key, public_path
from duckctl.process import wait_until

pytestmark = [pytest.mark.slow, needs_namespaces("qemu-system-x86_64", "dnsmasq", "ip")]

INVENTORY = """
all:
  vars: {{fleet_name: shelf}}
  children:
    ducks:
      children:
        dom0:
          vars: {{domain_subnet: 198.18.0.0/24, domain_host_address: 198.18.0.1,
                  domain_boot: {mode}, domain_mtu: {mtu}}}
          hosts:
            duck01: {{duck_mac: "52:54:00:00:00:01", duck_address: {address},
                      duck_image: linux, duck_identity: per_boot}}
"""
OTHER_SERVER_FIRST = "198.18.0.100"  # the address that the other DHCP server of a proxy gives


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key and the image."""
    package = real_kernel_package()
    folder = tmp_path_factory.mktemp("shelf")
    make_key(folder / "fleet.key")
    public = read_public(public_path(folder / "fleet.key"))
    build_linux(folder, public, kernel=KernelChoice(package), options=LinuxOptions("block"))
    return folder


@pytest.fixture
def fleet(shelf: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """The fleet in the mode that the test asks for (default: full DHCP)."""
    mode, mtu = getattr(request, "param", ("dhcp", 1500))
    address = "198.18.0.11" if mode == "dhcp" else OTHER_SERVER_FIRST
    path = shelf / "shelf.yml"
    path.write_text(INVENTORY.format(mode=mode, mtu=mtu, address=address))
    yield load_inventory(path)
    shutil.rmtree(shelf / "boot", ignore_errors=True)


def image_of(fleet: Fleet) -> tuple[ImageManifest, Path]:
    folder = fleet.path.parent
    return find_image(folder, "linux"), image_dir(folder, "linux")


@contextmanager
def other_dhcp_server(net: Net, folder: Path) -> Iterator[None]:
    """Somebody else's DHCP server in the box's namespace: addresses, nothing about boot."""
    ip("-n", net.box, "addr", "add", "198.18.0.2/24", "dev", "br0")
    command = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0",
               "--interface=br0", "--bind-interfaces", "--user=root", "--no-ping",
               f"--dhcp-range={OTHER_SERVER_FIRST},{OTHER_SERVER_FIRST},1h",
               f"--dhcp-host={MAC},{OTHER_SERVER_FIRST}", "--dhcp-ignore-clid",
               f"--dhcp-leasefile={folder}/other.leases", f"--pid-file={folder}/other.pid",
               f"--log-facility={folder}/other.log"]  # fmt: skip
    process = subprocess.Popen(net.run_in(net.box, command))
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("fleet", [("dhcp", 9000)], indirect=True)
def test_kernel_boot_answers_and_reboots(fleet: Fleet, tmp_path: Path) -> None:
    """-kernel: HELLO, the MTU and name of DHCP, and REBOOT restarts the machine."""
    image, folder = image_of(fleet)
    words = ["-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img"),
             "-append", image.command_line]  # fmt: skip
    with (
        Net("k", mtu=9000) as net,
        serving(net, fleet),
        guest(net, tmp_path, MAC, words, model="virtio-net-pci,host_mtu=9000") as machine,
    ):
        check_hello(net, fleet, image, machine, "linux-image")
        facts = ask(net, fleet)
        assert facts["name_told"] == "duck01"
        assert facts["mtu_bytes"] == 9000
        ask(net, fleet, "--reboot", "duck01")
        assert wait_until(lambda: machine.process.poll() is not None, 20), "QEMU has -no-reboot"
        assert "duck-init: asked to reboot" in machine.text()


def test_seabios_pxe(fleet: Fleet, tmp_path: Path) -> None:
    """SeaBIOS with the card's iPXE (e1000e): script, kernel and initramfs over HTTP."""
    image, _ = image_of(fleet)
    words = ["-boot", "n"]
    with (
        Net("b") as net,
        serving(net, fleet),
        guest(net, tmp_path, MAC, words, model="e1000e") as machine,
    ):
        check_hello(net, fleet, image, machine, "linux-image")
    files = [event.file for event in read_log(fleet, boot_paths(fleet)) if event.kind == "http"]
    assert files == ["/boot.ipxe", "/duck/52-54-00-00-00-01.ipxe", "/images/linux/vmlinuz",
                     "/images/linux/initrd.img"]  # fmt: skip


needs_ovmf = pytest.mark.skipif(not OVMF[0].exists(), reason="the package ovmf is not installed")


@needs_ovmf
@pytest.mark.parametrize("fleet", [("proxy", 1500)], indirect=True)
def test_t14_ovmf_pxe_beside_another_dhcp_server(fleet: Fleet, tmp_path: Path) -> None:
    """Proxy mode: OVMF asks port 4011, takes snponly.efi by TFTP, then what its script names."""
    image, _ = image_of(fleet)
    words = [*ovmf(tmp_path), *NO_IPV6]
    model = "virtio-net-pci,romfile="
    with (
        Net("o") as net,
        other_dhcp_server(net, tmp_path),
        serving(net, fleet),
        guest(net, tmp_path, MAC, words, model=model) as machine,
    ):
        check_hello(net, fleet, image, machine, "linux-image")
    events = read_log(fleet, boot_paths(fleet))
    assert next(e.file for e in events if e.kind == "boot_server") == "snponly.efi"
    assert {e.kind for e in events} >= {"proxy", "boot_server", "tftp_abort", "tftp", "http"}
    assert not [e for e in events if e.kind in ("tftp_failed", "http_failed", "tftp_missing")]


needs_secure_boot = pytest.mark.skipif(
    not SNAKEOIL_KEY.exists() or find_stub() is None or shutil.which("sbsign") is None,
    reason="ovmf (with its test keys), systemd-boot-efi or sbsigntool is not installed",
)


@needs_secure_boot
def test_t18_t19_secure_boot_takes_the_signed_uki_alone(fleet: Fleet, tmp_path: Path) -> None:
    """UEFI HTTP boot with Secure Boot on: HEAD, GET, "Access Denied" for the unsigned UKI; signed,
    the whole system comes up from one file, without a boot loader (T18, T19)."""
    own = tmp_path / "own"
    shutil.copytree(fleet.path.parent, own)
    mine = load_inventory(own / fleet.path.name)
    image, _ = image_of(mine)
    words = [*secure_ovmf(tmp_path), *ONLY_HTTP]
    model = "virtio-net-pci,romfile="
    with Net("u") as net, serving(net, mine):
        with guest(net, tmp_path, MAC, words, model=model, memory_mib=768) as machine:
            machine.wait_for("Access Denied", BOOT_S)
            assert "duck-init" not in machine.text()
        image = sign_for_secure_boot(own, image, snakeoil_key(tmp_path), SNAKEOIL_CERTIFICATE)
        again = tmp_path / "again"
        again.mkdir()
        words = [*secure_ovmf(again), *ONLY_HTTP]
        with guest(net, again, MAC, words, model=model, memory_mib=768) as machine:
            check_hello(net, mine, image, machine, "linux-image")
    events = [e for e in read_log(mine, boot_paths(mine)) if e.kind.startswith("http")]
    assert {(e.kind, e.file) for e in events} == {
        ("http_head", "/images/linux/linux.efi"),
        ("http", "/images/linux/linux.efi"),
    }
