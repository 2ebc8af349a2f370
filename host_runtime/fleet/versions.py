"""Does a duck fit this host, kernel and cache? Pure checks on what the duck said of itself.

Every check that fails gives one sentence that names the duck; all ducks are looked at before
anything is refused, so that one message names all the stale ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.fleet.config import DuckConfig
from host_runtime.fleet.told import told_text

UPDATE_HINT = (
    "bring these ducks to the host's version: duckctl provision (hardware), "
    "or duckctl lab down && duckctl lab up (lab)"
)


@dataclass(frozen=True)
class DuckFacts:
    """What INFO says about a duck, in Python's own types."""

    name: str
    protocol_version: int
    build: str
    boot_id: int
    platform: str
    cpu_model: str
    cpu_features: int
    core_count: int
    memory_bytes: int
    weight_bytes_max: int
    mtu_bytes: int
    link_mbps: int
    temperature_c: float | None
    state: int
    mac_address: str
    huge_pages: bool
    poll_policy: str
    abi_version: int
    weights_id: bytes
    uptime_s: float
    nic_driver: str  # empty = unknown
    nic_unproven: bool  # this driver has not been seen to work on silicon
    kernel: str  # what the open session's kernel said on its start: the body it chose


@dataclass(frozen=True)
class Needs:
    """What a duck must offer to serve one slice with one kernel."""

    build: str
    abi_version: int
    cpu_features: int
    region_bytes: int


@dataclass(frozen=True)
class Misfit:
    """Why a duck can't serve, and what to do about it."""

    text: str
    hint: str = UPDATE_HINT


class MisfitError(HostError):
    """A duck answers, but does not fit."""

    def __init__(self, duck: str, misfit: Misfit) -> None:
        super().__init__(f"{duck}: {misfit.text}", misfit.hint)


def facts_of(info: wire.Info) -> DuckFacts:
    """INFO in Python's own types; numbers that have no name here are shown as numbers, bytes of its
    texts that cannot be printed as ``?``."""
    return DuckFacts(
        name=told_text(info.name),
        protocol_version=info.protocol_version,
        build=bytes(info.build).hex(),
        boot_id=info.boot_id,
        platform=_enum_name(wire.Platform, info.platform),
        cpu_model=told_text(info.cpu_model).strip(),
        cpu_features=info.cpu_features,
        core_count=info.core_count,
        memory_bytes=info.memory_bytes,
        weight_bytes_max=info.weight_bytes_max,
        mtu_bytes=info.mtu_bytes,
        link_mbps=info.link_mbps,
        temperature_c=None if info.temperature_mc == -(1 << 31) else info.temperature_mc / 1000,
        state=info.state,
        mac_address=bytes(info.mac_address).hex(":"),
        huge_pages=bool(info.huge_pages),
        poll_policy=_enum_name(wire.PollPolicy, info.poll_policy),
        abi_version=info.abi_version,
        weights_id=bytes(info.weights_id),
        uptime_s=info.uptime_ns / 1e9,
        nic_driver=told_text(info.nic_driver),
        nic_unproven=bool(info.flags & wire.INFO_NIC_UNPROVEN),
        kernel=told_text(info.kernel),
    )


def feature_names(bits: int) -> list[str]:
    """``["avx2", "fma"]``; bits without a name are shown as ``bit 9``."""
    names = {feature.value: (feature.name or "").lower() for feature in wire.CpuFeature}
    return [names.get(1 << bit, f"bit {bit}") for bit in range(32) if bits & 1 << bit]


def find_misfit(duck: DuckConfig, facts: DuckFacts, needs: Needs) -> Misfit | None:
    """Why this duck can't serve, None when it can."""
    if facts.protocol_version != wire.WIRE_VERSION:
        return Misfit(
            f"speaks protocol version {facts.protocol_version}, this host speaks "
            f"{wire.WIRE_VERSION}"
        )
    if facts.name != duck.name:
        return Misfit(
            f"the duck at {duck.endpoint} calls itself '{facts.name}': two ducks are swapped, or "
            "the inventory has the wrong address",
            "correct the addresses in the inventory",
        )
    if facts.build != needs.build:
        return Misfit(f"is of build {facts.build[:12]}, this host is of build {needs.build[:12]}")
    if facts.abi_version != needs.abi_version:
        return Misfit(
            f"runs kernels of ABI version {facts.abi_version}, the kernel file has "
            f"{needs.abi_version}"
        )
    missing = feature_names(needs.cpu_features & ~facts.cpu_features)
    if missing:
        return Misfit(
            f"its CPU ({facts.cpu_model}) lacks {', '.join(missing)}, which the kernel needs",
            "leave this duck out, or use the scalar kernel (slow)",
        )
    if needs.region_bytes > facts.weight_bytes_max:
        return Misfit(
            f"has room for {facts.weight_bytes_max} bytes of weights, its slice has "
            f"{needs.region_bytes}",
            "shard for more ducks, or to a smaller format",
        )
    return None


def _enum_name(kind: type[wire.Platform] | type[wire.PollPolicy], value: int) -> str:
    try:
        return kind(value).name.lower().replace("_", "-")
    except ValueError:
        return str(value)
