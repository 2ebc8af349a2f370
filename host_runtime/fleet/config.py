"""The fleet file: which ducks there are, how to reach them, and the fleet's private key.

duckctl writes it (``duckctl serve``, ``duckctl lab up``); docs/reference/fleet.md lists its keys.
"""

from __future__ import annotations

import ipaddress
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from host_runtime import wire
from host_runtime.errors import FileFormatError
from host_runtime.fleet.pins import IdentityPolicy
from host_runtime.jsonfile import JsonObject, read_json_object

SCHEMA_VERSION = 1
CPUS_MAX = 1024
DUCKS_MAX = 64  # of one host transport (DUCKHOST_DUCKS_MAX)
MTU_MIN, MTU_MAX = 576, 9216
KEY_LABEL = "duck-p256-private:"
OLD_KEY = re.compile(r"[0-9a-fA-F]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class DomainConfig:
    """One isolated broadcast domain. ``call_address`` None = calls go to each duck by unicast."""

    name: str
    bind_address: str | None
    call_address: str | None
    mtu: int
    device: str | None = None  # of DPDK; None = UDP sockets
    cpu: int | None = None  # where the domain's thread runs


@dataclass(frozen=True)
class DuckConfig:
    """One duck; it serves slice ``slot`` of every expert."""

    name: str
    domain: str
    address: str
    port: int
    slot: int
    identity: IdentityPolicy = IdentityPolicy.PINNED

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class FleetConfig:
    """A whole fleet file; ``ducks`` are in slot order."""

    name: str
    key_file: Path
    pins_file: Path
    domains: tuple[DomainConfig, ...]
    ducks: tuple[DuckConfig, ...]

    def domain_index(self, duck: DuckConfig) -> int:
        return [domain.name for domain in self.domains].index(duck.domain)


def load_fleet(path: Path, ducks_max: int = DUCKS_MAX) -> FleetConfig:
    """Read and check a fleet file; raises FileFormatError.

    ``ducks_max``: more than DUCKS_MAX for a caller that opens no transport.
    """
    root = read_json_object(path, "fleet file")
    root.version(SCHEMA_VERSION)
    name = root.text("name")
    key_file = Path(root.text("key_file"))
    if not key_file.is_absolute():
        raise root.fail("key_file", f"'{key_file}' is not an absolute path")
    pins_file = Path(root.text("pins_file")) if root.has("pins_file") else _pins_beside(key_file)
    if not pins_file.is_absolute():
        raise root.fail("pins_file", f"'{pins_file}' is not an absolute path")
    domains = tuple(_domain(entry) for entry in root.children("domains"))
    names = [domain.name for domain in domains]
    for twice in sorted({entry for entry in names if names.count(entry) > 1}):
        raise root.fail("domains", f"the name '{twice}' appears twice")
    entries = list(root.children("ducks"))
    if not 1 <= len(entries) <= ducks_max:
        raise root.fail("ducks", f"expected 1 to {ducks_max} ducks, found {len(entries)}")
    ducks = tuple(_duck(entry, names, slot, ducks_max) for slot, entry in enumerate(entries))
    _refuse_twins(root, ducks)
    root.finish()
    return FleetConfig(name, key_file, pins_file, domains, ducks)


def read_key(path: Path) -> bytes:
    """The fleet's private key, from a file that only its owner can read."""
    where = f"key file {path}"
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise FileFormatError(
            f"{where}: cannot be read: {error.strerror}", "make one with: duckctl init"
        ) from error
    except UnicodeDecodeError:
        text, mode = "", 0
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FileFormatError(
            f"{where}: other users may read it (mode {stat.S_IMODE(mode):04o})",
            f"run: chmod 600 {path}",
        )
    digits = text.removeprefix(KEY_LABEL)
    if digits == text and OLD_KEY.fullmatch(text):
        raise FileFormatError(
            f"{where}: is a shared key of an older version; a fleet has a key pair now",
            "move it away, make a pair with: duckctl init, and give the ducks the public key",
        )
    try:
        key = bytes.fromhex(digits) if digits != text else b""
    except ValueError:
        key = b""
    if len(key) != wire.WIRE_KEY_BYTES:
        raise FileFormatError(
            f"{where}: expected '{KEY_LABEL}' and {2 * wire.WIRE_KEY_BYTES} hex digits"
        )
    return key


def _domain(entry: JsonObject) -> DomainConfig:
    domain = DomainConfig(
        name=_name(entry),
        bind_address=_address(entry, "bind_address", null=True),
        call_address=_address(entry, "call_address", null=True),
        mtu=entry.integer("mtu", MTU_MIN, MTU_MAX),
        device=entry.text_or_null("device") if entry.has("device") else None,
        cpu=_cpu(entry),
    )
    entry.finish()
    return domain


def _cpu(entry: JsonObject) -> int | None:
    if not entry.has("cpu") or entry.take("cpu") is None:
        return None
    return entry.integer("cpu", 0, CPUS_MAX - 1)


def _duck(entry: JsonObject, domains: list[str], slot: int, ducks_max: int) -> DuckConfig:
    duck = DuckConfig(
        name=_name(entry),
        domain=entry.choice("domain", domains),
        address=_address(entry, "address", null=False) or "",
        port=entry.integer("port", 1, 65535),
        slot=entry.integer("slot", 0, ducks_max - 1),
        identity=_policy(entry),
    )
    if duck.slot != slot:
        raise entry.fail("slot", f"is {duck.slot}, expected {slot}: ducks are in slot order")
    entry.finish()
    return duck


def _policy(entry: JsonObject) -> IdentityPolicy:
    if not entry.has("identity"):
        return IdentityPolicy.PINNED
    return IdentityPolicy(entry.choice("identity", list(IdentityPolicy)))


def _pins_beside(key_file: Path) -> Path:
    return key_file.with_suffix(".pins.json")


def _name(entry: JsonObject) -> str:
    name = entry.text("name")
    if not NAME.fullmatch(name) or len(name) >= wire.WIRE_NAME_BYTES:
        raise entry.fail(
            "name",
            f"'{name}' must be 1 to {wire.WIRE_NAME_BYTES - 1} letters, digits, '.', '_' or '-', "
            "a letter or digit first",
        )
    return name


def _address(entry: JsonObject, key: str, *, null: bool) -> str | None:
    text = entry.text_or_null(key) if null else entry.text(key)
    if text is None:
        return None
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise entry.fail(key, f"'{text}' is not an IPv4 address") from None


def _refuse_twins(root: JsonObject, ducks: tuple[DuckConfig, ...]) -> None:
    seen: dict[str, str] = {}
    for duck in ducks:
        for what in (f"name '{duck.name}'", f"address {duck.endpoint}"):
            if what in seen:
                raise root.fail("ducks", f"{duck.name} has the same {what} as {seen[what]}")
            seen[what] = duck.name
