"""A signed duckos.img boots by PXE with Secure Boot on; firmware refuses the unsigned one."""

from __future__ import annotations

from pathlib import Path

import pytest
from netns_kit import Net, needs_namespaces
from qemu_kit import (
    NO_IPV6,
    SNAKEOIL_CERTIFICATE,
    SNAKEOIL_KEY,
    guest,
    secure_ovmf,
    snakeoil_key,
)
from service_kit import BOOT_S, MAC, check_hello, serving

from duckctl.image.duckos import DuckosOptions, build_duckos
from duckctl.image.fleet_public import read_public
from duckctl.image.signing import sign_for_secure_boot
from duckctl.inventory import load_inventory
from duckctl.keys import make_key, public_path

pytestmark = [pytest.mark.slow, needs_namespaces("qemu-system-x86_64", "dnsmasq", "ip", "sbsign")]

INVENTORY = f"""
all:
  vars: {{fleet_name: shelf}}
  children:
    ducks:
      children:
        dom0:
          vars: {{domain_subnet: 198.18.0.0/24, domain_host_address: 198.18.0.1}}
          hosts:
            duck01: {{duck_mac: "{MAC}", duck_address: 198.18.0.11, duck_image: duckos,
                     duck_identity: per_boot}}
"""


@pytest.mark.skipif(not SNAKEOIL_KEY.exists(), reason="ovmf with its test keys is not installed")
def test_t19_secure_boot_takes_the_signed_duckos_alone(tmp_path: Path) -> None:
    """The same firmware, network and file, without and with a signature (T19)."""
    (tmp_path / "shelf.yml").write_text(INVENTORY)
    fleet = load_inventory(tmp_path / "shelf.yml")
    make_key(fleet.key_file)
    public = read_public(public_path(fleet.key_file))
    image = build_duckos(tmp_path, public, options=DuckosOptions(poll="hlt", console="serial"))
    model = "virtio-net-pci,romfile="
    with Net("g") as net, serving(net, fleet):
        words = [*secure_ovmf(tmp_path), *NO_IPV6]
        with guest(net, tmp_path, MAC, words, model=model) as machine:
            machine.wait_for("Access Denied", BOOT_S)
            assert "duckos" not in machine.text().split("Access Denied")[1]
        image = sign_for_secure_boot(tmp_path, image, snakeoil_key(tmp_path), SNAKEOIL_CERTIFICATE)
        again = tmp_path / "again"
        again.mkdir()
        words = [*secure_ovmf(again), *NO_IPV6]
        with guest(net, again, MAC, words, model=model) as machine:
            check_hello(net, fleet, image, machine, "duckos")
