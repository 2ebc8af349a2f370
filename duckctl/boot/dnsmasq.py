"""BootPlan -> the text of dnsmasq's files. Pure; the same rules as ``answers.decide``.

How it works. A reservation (hosts file) tags a duck: ``of-DOMAIN`` with its domain, ``img-NAME``
with the image that it shall boot, ``ldr-ipxe`` if it needs that boot loader; ``noboot`` alone if it
gets no file. Option 93 gives the tag ``archN``, iPXE the tag ``ipxe``, a domain's range the tag
``dom-DOMAIN``. ``dhcp-boot`` lines then join tags to files; they exclude each other, so their order
is nothing. A reservation without an address (proxy mode, a domain that is off) holds in every
subnet, so files are for ducks that ask in their own domain: ``dom-X`` and ``of-X``.

Proxy mode. dnsmasq answers port 4011 only when it has a ``pxe-service`` line, and builds menus
from those that match. One line that never matches gives the port without the menu: then both
ports carry the file of the same ``dhcp-boot`` line (BIOS: option 43 ``06 01 08`` on both ports,
UEFI: on 4011, where it is sent to).

Changes. dnsmasq 2.90 aborts when it reads tagged reservations again at SIGHUP after one of them was
used (it frees the tags of the range with those of the host). So it is started anew instead; the
service runs TFTP as a process of its own, whose transfers then go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import pairwise

from duckctl.boot.answers import boot_file, why_no_image
from duckctl.boot.arch import ARCHS, Arch
from duckctl.boot.plan import BootPlan
from duckctl.image.manifest import ImageManifest
from duckctl.inventory import Domain, Duck

UNKNOWN_TAGS = "tag:!known,tag:!known-othernet"
DOMAIN_TAG = "dom-"  # names of domains are not tags themselves: one may be called "known" or "ipxe"
TFTP_TRANSFERS_MAX = 512
PLAIN_MTU = 1500


@dataclass(frozen=True)
class Pool:
    """Addresses for boxes without a reservation, first to last."""

    first: IPv4Address
    last: IPv4Address

    @property
    def size(self) -> int:
        return int(self.last) - int(self.first) + 1


def find_pool(plan: BootPlan, domain: Domain) -> Pool | None:
    """The end of the largest gap between a domain's reservations; None if it is full."""
    subnet = domain.subnet
    used = {int(domain.host_address), int(subnet.network_address), int(subnet.broadcast_address)}
    used |= {int(duck.address) for duck in plan.fleet.ducks if duck.domain.name == domain.name}
    ordered = sorted(used)
    gaps = [(b - a - 1, b) for a, b in pairwise(ordered) if b - a > 1]
    if not gaps:
        return None
    room, end = max(gaps)
    size = min(room, plan.policy.pool_addresses_max)
    return Pool(IPv4Address(end - size), IPv4Address(end - 1))


def render_hosts(plan: BootPlan) -> str:
    """The reservations, one duck a line: MAC, tags, address, name, lease."""
    lines = []
    for duck in plan.fleet.ducks:
        if duck.mac is None:
            continue
        parts = [duck.mac, *_duck_tags(plan, duck)]
        if plan.mode_of(duck.domain) == "dhcp":
            parts += [str(duck.address), duck.name, f"{plan.policy.duck_lease_s}s"]
        lines.append(",".join(parts))
    return "".join(line + "\n" for line in lines)


def _duck_tags(plan: BootPlan, duck: Duck) -> list[str]:
    if plan.mode_of(duck.domain) == "off" or why_no_image(plan, duck):
        return ["set:noboot"]
    tags = [f"set:of-{duck.domain.name}", f"set:img-{plan.image_name_of(duck)}"]
    if duck.ipxe == "ipxe":
        tags.append("set:ldr-ipxe")
    return tags


def render_tftp(plan: BootPlan) -> str:
    """The configuration of a dnsmasq that does TFTP alone."""
    served = [domain for domain in plan.fleet.domains if plan.mode_of(domain) != "off"]
    paths = plan.paths
    lines = [
        f"# TFTP for the ducks of fleet {plan.fleet.name}, written by duckctl",
        *_always(plan),
        f"pid-file={paths.tftp_pid_file}",
        *_tftp(plan),
        *(_interface(plan, domain) for domain in served),
    ]
    return "\n".join(lines) + "\n"


def render_config(plan: BootPlan, with_tftp: bool = True) -> str:
    """The configuration of one dnsmasq for all domains of the fleet."""
    served = [domain for domain in plan.fleet.domains if plan.mode_of(domain) != "off"]
    lines = [
        f"# dnsmasq for the ducks of fleet {plan.fleet.name}, written by duckctl from",
        f"# {plan.fleet.path.name}; changes made here are lost.",
        *_always(plan),
        *_general(plan),
        *(_tftp(plan) if with_tftp else []),
        *(f"dhcp-match=set:{arch.tag},option:client-arch,{code}" for code, arch in ARCHS.items()),
        "dhcp-userclass=set:ipxe,iPXE",
        "dhcp-match=set:ipxe,175",
    ]
    for domain in served:
        lines += ["", *_domain(plan, domain)]
    lines += ["", *_boot_lines(plan, served)]
    return "\n".join(lines) + "\n"


def _always(plan: BootPlan) -> list[str]:
    return [
        "port=0",
        "bind-interfaces",
        "except-interface=lo",
        f"log-facility={plan.paths.dnsmasq_log}",
        f"user={plan.policy.user}",
    ]


def _tftp(plan: BootPlan) -> list[str]:
    return ["enable-tftp", f"tftp-root={plan.paths.tftp}", f"tftp-max={TFTP_TRANSFERS_MAX}"]


def _general(plan: BootPlan) -> list[str]:
    paths = plan.paths
    leases_max = len(plan.fleet.ducks) + plan.policy.pool_addresses_max * len(plan.fleet.domains)
    return [
        "no-ping",
        "dhcp-authoritative",
        "dhcp-ignore-clid",
        f"dhcp-lease-max={leases_max}",
        "log-dhcp",
        f"pid-file={paths.pid_file}",
        f"dhcp-leasefile={paths.leases}",
        f"dhcp-hostsfile={paths.hosts}",
        *(["enable-ra"] if plan.policy.router_advertisements else []),
    ]


def _interface(plan: BootPlan, domain: Domain) -> str:
    """Where a domain is served."""
    interface = plan.interfaces.get(domain.name)
    return f"interface={interface}" if interface else f"listen-address={domain.host_address}"


def _domain(plan: BootPlan, domain: Domain) -> list[str]:
    """Where a domain is served and what its boxes get besides a file."""
    interface = plan.interfaces.get(domain.name)
    mode = plan.mode_of(domain)
    lines = [f"# {domain.name}: {mode}", _interface(plan, domain)]
    if plan.policy.router_advertisements and interface and mode == "dhcp":
        lines.append(f"dhcp-range=::,constructor:{interface},ra-only")
    if mode == "proxy":
        # The range is for those alone that get a file: silence lets the others go on at once. A box
        # that no duck is has to be let in (without a file) to be seen: else no line has its MAC.
        start, network = f"dhcp-range=set:{_tag(domain)}", domain.subnet.network_address
        lines.append(f"{start},tag:of-{domain.name},{network},proxy")
        if plan.unknown != "ignore":
            lines.append(f"{start},{UNKNOWN_TAGS},{network},proxy")
        lines.append("pxe-service=tag:never,x86PC,duckctl,never")
        return lines
    lines.append(_range(plan, domain))
    tag = f"tag:{_tag(domain)}"
    # The host is neither a router nor a name server for the ducks.
    lines += [f"dhcp-option={tag},option:router", f"dhcp-option={tag},option:dns-server"]
    # iPXE: do not wait for a proxy (175.176).
    lines.append(f"dhcp-option={tag},encap:175,176,1b")
    # A running duckos (vendor class "duckos") takes settings out of option 43.
    lines += [
        f'dhcp-option={tag},vendor:duckos,1,"{setting}"'
        for setting in (f"host={domain.host_address}", f"domain={domain.name}")
    ]
    if domain.mtu != PLAIN_MTU:
        lines.append(f"dhcp-option={tag},option:mtu,{domain.mtu}")
    if plan.unknown == "ignore":
        lines.append(f"dhcp-ignore={tag},{UNKNOWN_TAGS}")
    return lines


def _tag(domain: Domain) -> str:
    """What a box has that asks in this domain."""
    return f"{DOMAIN_TAG}{domain.name}"


def _range(plan: BootPlan, domain: Domain) -> str:
    pool = find_pool(plan, domain) if plan.unknown != "ignore" else None
    mask, lease = domain.subnet.netmask, plan.policy.pool_lease_s
    if pool is None:
        return f"dhcp-range=set:{_tag(domain)},{domain.subnet.network_address},static,{mask}"
    return f"dhcp-range=set:{_tag(domain)},{pool.first},{pool.last},{mask},{lease}s"


def _boot_lines(plan: BootPlan, served: list[Domain]) -> Iterator[str]:
    """One dhcp-boot line for each image, domain, firmware, stage and loader that has a file."""
    default = plan.images.get(plan.default_image)
    for image in plan.images.values():
        yield f"# image {image.name}: {image.kind} {image.version}, {image.digest[:12]}"
        for domain in served:
            who = f"tag:of-{domain.name},tag:img-{image.name}"
            yield from _boot_lines_of(plan, image, domain, who)
    if plan.unknown == "boot" and default is not None:
        yield "# boxes that no duck is"
        for domain in served:
            yield from _boot_lines_of(plan, default, domain, UNKNOWN_TAGS)


def _boot_lines_of(plan: BootPlan, image: ImageManifest, domain: Domain, who: str) -> Iterator[str]:
    for arch in ARCHS.values():
        if arch.over == "http" and plan.mode_of(domain) == "proxy":
            continue
        tags = f"tag:{_tag(domain)},{who},tag:{arch.tag}"
        if arch.over == "http":
            yield f"dhcp-option-force={tags},60,HTTPClient"
        # In proxy mode dnsmasq leaves "next server" empty, and iPXE's ROM then takes no file.
        server = f",,{domain.host_address}" if plan.mode_of(domain) == "proxy" else ""
        for line in _lines_of_arch(plan, image, domain, arch, tags):
            yield line + server


def _lines_of_arch(
    plan: BootPlan, image: ImageManifest, domain: Domain, arch: Arch, tags: str
) -> Iterator[str]:
    """Without conditions where the file is the same for all; with them where it is not."""
    plain = boot_file(plan, image, domain, arch, False, "snponly").file
    other = boot_file(plan, image, domain, arch, False, "ipxe").file
    script = boot_file(plan, image, domain, arch, True, "snponly").file
    if plain == other == script:
        yield f"dhcp-boot={tags},{plain}"
        return
    yield f"dhcp-boot={tags},tag:ipxe,{script}"
    if plain == other:
        if plain:
            yield f"dhcp-boot={tags},tag:!ipxe,{plain}"
        return
    for file, loader in ((plain, "tag:!ldr-ipxe"), (other, "tag:ldr-ipxe")):
        if file:
            yield f"dhcp-boot={tags},tag:!ipxe,{loader},{file}"
