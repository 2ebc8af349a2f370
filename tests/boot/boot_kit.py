"""Fleets, images and plans for the tests of boot."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from netns_kit import Net

from duckctl.boot.dnsmasq import render_config, render_hosts
from duckctl.boot.intents import Intent
from duckctl.boot.plan import BootPaths, BootPlan, BootPolicy
from duckctl.image.manifest import ImageFile, ImageManifest
from duckctl.inventory import Fleet, load_inventory

INVENTORY = """
all:
  vars: {{fleet_name: shelf, fleet_unknown_ducks: {unknown}}}
  children:
    ducks:
      children:
        dom0:
          vars: {{domain_subnet: 198.18.0.0/24, domain_host_address: 198.18.0.1,
                  domain_boot: {first}}}
          hosts:
            duck01: {{duck_mac: "02:00:00:00:00:01", duck_address: 198.18.0.11,
                      duck_image: duckos}}
            duck02: {{duck_mac: "02:00:00:00:00:02", duck_address: 198.18.0.12,
                      duck_image: linux}}
            duck03: {{duck_mac: "02:00:00:00:00:03", duck_address: 198.18.0.13,
                      duck_image: linux, duck_ipxe: ipxe}}
            duck04: {{duck_mac: "02:00:00:00:00:04", duck_address: 198.18.0.14,
                      duck_image: duckos}}
        dom1:
          vars: {{domain_subnet: 198.18.1.0/24, domain_host_address: 198.18.1.1,
                  domain_boot: {second}}}
          hosts:
            duck05: {{duck_mac: "02:00:00:00:00:05", duck_address: 198.18.1.11,
                      duck_image: duckos}}
            duck06: {{duck_mac: "02:00:00:00:00:06", duck_address: 198.18.1.12,
                      duck_image: linux}}
"""
STRANGER = "02:00:00:00:00:99"


def make_fleet(
    folder: Path, first: str = "dhcp", second: str = "dhcp", unknown: str = "discover"
) -> Fleet:
    """Two domains, six ducks, both images."""
    path = folder / "shelf.yml"
    path.write_text(INVENTORY.format(first=first, second=second, unknown=unknown))
    return load_inventory(path)


def made_up_file(name: str) -> ImageFile:
    return ImageFile(name, len(name), hashlib.sha256(name.encode()).hexdigest())


def make_images(uki: bool = True) -> dict[str, ImageManifest]:
    """Manifests without files behind them: answers only name files."""
    blank = ImageManifest("duckos", "duckos", "1", "", "b" * 40, "f" * 16, "", {}, {})
    duckos = replace(blank, files={"boot": made_up_file("duckos.img")})
    files = {"kernel": made_up_file("vmlinuz"), "initrd": made_up_file("initrd.img")}
    if uki:
        files["uki"] = made_up_file("linux.efi")
    linux = replace(blank, name="linux", kind="linux", files=files)
    return {"duckos": duckos.sealed(), "linux": linux.sealed()}


def make_plan(
    fleet: Fleet,
    folder: Path,
    intents: Mapping[str, Intent] | None = None,
    policy: BootPolicy | None = None,
    images: Mapping[str, ImageManifest] | None = None,
    loaders: tuple[str, ...] = ("undionly.kpxe", "snponly.efi", "ipxe.efi"),
) -> BootPlan:
    return BootPlan(
        fleet=fleet,
        paths=BootPaths(folder / "boot"),
        images=make_images() if images is None else images,
        intents=intents or {},
        policy=policy or BootPolicy(http_port=8080),
        ipxe_files={name: Path("/usr/lib/ipxe") / name for name in loaders},
        interfaces={
            domain.name: f"nic{index}"
            for index, domain in enumerate(fleet.domains)
            if not domain.subnet.is_loopback
        },
    )


def write_files(plan: BootPlan) -> None:
    plan.paths.tftp.mkdir(parents=True, exist_ok=True)
    plan.paths.config.write_text(render_config(plan))
    plan.paths.hosts.write_text(render_hosts(plan))


@contextmanager
def dnsmasq_of(plan: BootPlan, net: Net) -> Iterator[subprocess.Popen[bytes]]:
    """The real dnsmasq with the plan's files in the host namespace."""
    write_files(plan)
    command = net.run_in(net.host, ["dnsmasq", "-k", "-C", plan.paths.config])
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 10
        while not plan.paths.pid_file.exists() and process.poll() is None:
            assert time.monotonic() < deadline, "dnsmasq wrote no pid file"
            time.sleep(0.01)
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        yield process
    finally:
        process.terminate()
        process.wait(10)
        if process.stderr:
            process.stderr.close()
