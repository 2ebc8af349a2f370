"""The decision: what one boot request is answered. The only place where that is decided.

dnsmasq's configuration (``duckctl.boot.dnsmasq``) is the same rules in its language, for port 67
and port 4011 alike; tests send every kind of request to the real one and compare with ``decide``.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

from duckctl.boot.arch import ARCHS, Arch
from duckctl.boot.plan import BootPlan
from duckctl.image.manifest import ImageManifest, build_command
from duckctl.inventory import Domain, Duck

BOOT_SCRIPT = "boot.ipxe"


@dataclass(frozen=True)
class BootRequest:
    """One DISCOVER or REQUEST. ``arch``: option 93, None when the client does not network-boot
    (a system that is up). ``ipxe``: it is iPXE (user class ``iPXE`` or option 175)."""

    domain: Domain
    mac: str
    arch: int | None
    ipxe: bool = False
    port: Literal[67, 4011] = 67


@dataclass(frozen=True)
class BootAnswer:
    """``silent``: nothing is sent, or (proxy mode, a box that is to be discovered) an offer of
    nothing, since dnsmasq logs the MAC of those alone that it answers. ``address``: an address and
    no boot file; the firmware goes on to its next device. ``boot``: with a file, a TFTP path or a
    URL.

    ``stage``: ``image`` (the file is the system), ``loader`` (iPXE), ``script`` (for iPXE).
    """

    action: Literal["silent", "address", "boot"]
    reason: str
    address: IPv4Address | None = None  # None with ``address``/``boot``: one of the pool
    server: IPv4Address | None = None  # of the TFTP server
    file: str = ""
    stage: Literal["image", "loader", "script", ""] = ""
    image: str = ""


@dataclass(frozen=True)
class BootFile:
    """What an image offers to one kind of firmware; ``file`` empty: nothing, for ``reason``."""

    file: str
    stage: Literal["image", "loader", "script", ""]
    reason: str


def decide(plan: BootPlan, request: BootRequest) -> BootAnswer:
    """What a request is answered, and why. Pure."""
    mode = plan.mode_of(request.domain)
    if mode == "off":
        return BootAnswer("silent", f"domain_boot of {request.domain.name} is off")
    duck = duck_of(plan, request.mac)
    if duck is not None and duck.domain.name != request.domain.name:
        # Never lease the address of another subnet; the box is treated as one that no duck is.
        reason = f"{duck.name} belongs to {duck.domain.name}: wrong port?"
        if plan.unknown == "ignore":
            return BootAnswer("silent", reason)
        return _without_file(mode, None, reason)
    if duck is None and plan.unknown == "ignore":
        return BootAnswer("silent", "no duck has this MAC; fleet_unknown_ducks is ignore")
    address = duck.address if duck is not None else None
    if mode == "dhcp" and request.arch is None and not request.ipxe:
        return BootAnswer("address", "no network boot request (no option 93)", address)
    reason = why_no_image(plan, duck)
    if reason:
        return _without_file(mode, address, reason)
    image = plan.images[plan.image_name_of(duck)]
    arch = ARCHS.get(request.arch if request.arch is not None else -1)
    if arch is None:
        return _without_file(mode, address, f"firmware code {request.arch} is not one we know")
    if mode == "proxy" and arch.over == "http":
        return BootAnswer("silent", "HTTP boot needs domain_boot: dhcp")
    found = boot_file(plan, image, request.domain, arch, request.ipxe, ipxe_choice(duck))
    if not found.file:
        return _without_file(mode, address, found.reason)
    return BootAnswer(
        "boot",
        found.reason,
        address if mode == "dhcp" else None,
        request.domain.host_address,
        found.file,
        found.stage,
        image.name,
    )


def _without_file(mode: str, address: IPv4Address | None, reason: str) -> BootAnswer:
    return BootAnswer("silent" if mode == "proxy" else "address", reason, address)


def duck_of(plan: BootPlan, mac: str) -> Duck | None:
    """The duck that has this MAC."""
    return next((duck for duck in plan.fleet.ducks if duck.mac == mac), None)


def ipxe_choice(duck: Duck | None) -> Literal["snponly", "ipxe"]:
    """The UEFI boot loader of a duck: the firmware's own driver, unless its model needs another."""
    return duck.ipxe if duck is not None else "snponly"


def why_no_image(plan: BootPlan, duck: Duck | None) -> str:
    """Why this box gets no boot file at all, or empty."""
    if duck is None and plan.unknown != "boot":
        return "no duck has this MAC; duckctl discover shows it"
    if duck is not None:
        intent = plan.intent_of(duck)
        if intent.action != "image":
            return f"intent of {duck.name} is '{intent.action}'" + (
                f": {intent.reason}" if intent.reason else ""
            )
    name = plan.image_name_of(duck)
    if name not in plan.images:
        return f"image '{name}' is not built; make it: {build_command(name)}"
    return ""


def boot_file(
    plan: BootPlan,
    image: ImageManifest,
    domain: Domain,
    arch: Arch,
    ipxe: bool,
    loader: Literal["snponly", "ipxe"],
) -> BootFile:
    """The file that an image offers to a firmware, as dhcp-boot or pxe-service names it."""
    web = web_root(plan, domain)
    if image.kind == "duckos":
        name = "duckos.img" if arch.firmware == "bios" else "duckos.efi"
        path = f"{image.name}/{name}"
        url = f"{web}/images/{path}"
        return BootFile(url if arch.over == "http" else path, "image", "one file for all firmware")
    if ipxe:
        return BootFile(f"{web}/{BOOT_SCRIPT}", "script", "iPXE gets its script over HTTP")
    if arch.over == "http" and arch.firmware == "uefi" and "uki" in image.files:
        uki = image.files["uki"].path
        return BootFile(f"{web}/images/{image.name}/{uki}", "image", "kernel and initrd in one")
    name = "undionly.kpxe" if arch.firmware == "bios" else f"{loader}.efi"
    if name in plan.ipxe_files:
        url = f"{web}/ipxe/{name}"
        return BootFile(url if arch.over == "http" else name, "loader", f"{name}, then its script")
    if arch.firmware == "uefi" and "uki" in image.files:
        uki = image.files["uki"].path
        return BootFile(f"{image.name}/{uki}", "image", f"{name} is not installed, so the UKI")
    return BootFile("", "", f"{name} is not installed (Debian package ipxe)")


def web_root(plan: BootPlan, domain: Domain) -> str:
    """The HTTP server of a domain, without a slash at the end."""
    port = "" if plan.policy.http_port == 80 else f":{plan.policy.http_port}"
    return f"http://{domain.host_address}{port}"
