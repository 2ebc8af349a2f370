"""The variables that an inventory may set: where each may stand and how its value is read.

A reader takes a Located value and gives the typed one, or raises FieldError with what was
expected. Names of variables carry their level: ``fleet_``, ``host_``, ``domain_``, ``duck_``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from duckctl.power_options import option_problem
from duckctl.yaml_source import Located, plain
from duckctl.yaml_source import Mapping as YamlMapping

DUCK_PORT = 7211  # DUCK_WIRE_PORT
NAME_BYTES_MAX = 31  # DUCK_WIRE_NAME_BYTES with its zero
MTU_MIN, MTU_MAX = 1500, 9000  # the two packet sizes of the wire protocol lie in this range
CORES_MAX = 64
NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
# In a reservation dnsmasq takes these for a lease's time or its word for "no answer".
NO_DUCK_NAME = re.compile(r"\d+[smhdw]?|infinite|ignore")
NIC_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,15}")
PCI_ADDRESS = re.compile(r"([0-9a-f]{4}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class FieldError(Exception):
    """A value that its variable cannot take.

    ``mistakes``: what is wrong, each with its line; line 0 is that of the variable itself.
    """

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.mistakes = [(text, line)]


class Level(Enum):
    """The place of a variable."""

    ALL = "the vars of 'all'"
    HOST = "the host of group 'gpu_host'"
    DUCKS = "the vars of group 'ducks'"
    DOMAIN = "the vars of a domain"
    DUCK = "a duck"


@dataclass(frozen=True)
class Power:
    """One way to switch a duck: a backend and its options (docs/reference/inventory.md)."""

    backend: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class PowerOptions:
    """Options of a power backend."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


POWER_BACKENDS: Mapping[str, PowerOptions] = {
    "none": PowerOptions(),
    "reboot": PowerOptions(),  # the protocol's own REBOOT request
    "wol": PowerOptions(optional=("mac",)),
    "ipmi": PowerOptions(("address", "user", "password_file"), ("port",)),
    "redfish": PowerOptions(("url", "user", "password_file"), ("system", "ca_file")),
    "http": PowerOptions(("on_url", "off_url"), ("status_url", "on_pattern", "method")),
    "command": PowerOptions(("on", "off"), ("status", "on_pattern")),
    "ssh": PowerOptions(("user",), ("port", "key_file")),
    "lab": PowerOptions(("machine",)),
}

Reader = Callable[[Located], Any]


def _text(located: Located) -> str:
    if isinstance(located.value, (YamlMapping, list)) or located.value is None:
        raise FieldError(f"expected a text, found {located.kind()}")
    if "{{" in located.text:
        raise FieldError(f"'{located.text}' is a template; duckctl needs the value itself")
    _refuse_unnameable(located.text)
    return located.text


def _refuse_unnameable(text: str) -> None:
    """NUL ends a text where C reads it, and half a pair of UTF-16 is in no file's name."""
    if "\0" in text or any(0xD800 <= ord(character) < 0xE000 for character in text):
        raise FieldError(f"{text!a} has a character that no name can have")


def _path(located: Located) -> str:
    text = _text(located)
    try:
        Path(text).expanduser()
    except RuntimeError:
        user = text.split("/", 1)[0]
        raise FieldError(f"'{text}': there is no home folder of '{user}'") from None
    return text


def _integer(low: int, high: int) -> Reader:
    def read(located: Located) -> int:
        value = located.value
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldError(
                f"expected a whole number from {low} to {high}, found {located.kind()}"
            )
        if not low <= value <= high:
            raise FieldError(f"{value} is not in the range {low} to {high}")
        return value

    return read


def _choice(*choices: str) -> Reader:
    def read(located: Located) -> str:
        text = _text(located)
        if text not in choices:
            nearest = difflib.get_close_matches(text, choices, n=1)
            suggestion = f"; did you mean '{nearest[0]}'?" if nearest else ""
            raise FieldError(f"'{text}' is not one of {', '.join(choices)}{suggestion}")
        return text

    return read


def _pattern(pattern: re.Pattern[str], expected: str) -> Reader:
    def read(located: Located) -> str:
        text = _text(located)
        if not pattern.fullmatch(text):
            raise FieldError(f"'{text}' is not {expected}")
        return text

    return read


def _pci(located: Located) -> str:
    """With the PCI domain, 0000 where the inventory leaves it out."""
    address = _pattern(PCI_ADDRESS, "a PCI address such as 0000:41:00.0")(located)
    return address if address.count(":") == 2 else f"0000:{address}"


def _address(located: Located) -> IPv4Address:
    try:
        return IPv4Address(_text(located))
    except ValueError:
        raise FieldError(f"'{located.text}' is not an IPv4 address") from None


def _subnet(located: Located) -> IPv4Network:
    text = _text(located)
    try:
        network = IPv4Network(text, strict=False)
    except ValueError:
        raise FieldError(f"'{text}' is not an IPv4 subnet such as 10.21.1.0/24") from None
    if "/" not in text or not 8 <= network.prefixlen <= 30:
        raise FieldError(f"'{text}' needs a prefix length from /8 to /30, such as 10.21.1.0/24")
    if str(network) != text:
        raise FieldError(f"'{text}' has host bits set; the subnet is {network}")
    return network


def read_mac(located: Located) -> str:
    """A station address in lower case with colons."""
    text = _text(located)
    mac = text.lower().replace("-", ":")
    if isinstance(located.value, (int, float)):
        raise FieldError(f"put quotes around {text}: YAML reads it as the number {located.value}")
    if not MAC.fullmatch(mac):
        raise FieldError(f"'{text}' is not a MAC address such as \"a8:b8:e0:00:01:0b\"")
    first = int(mac[:2], 16)
    if first & 1:
        raise FieldError(f"'{text}' is a multicast address, no card has it")
    if mac == "00:00:00:00:00:00":
        raise FieldError(f"'{text}' is no card's address")
    return mac


def is_locally_administered(mac: str) -> bool:
    """True for addresses that software made up; several cards may share one."""
    return bool(int(mac[:2], 16) & 2)


def why_no_duck_name(name: str) -> str:
    """Why a duck cannot have this name; empty if it can."""
    if len(name) > NAME_BYTES_MAX:
        return f"'{name}' is longer than {NAME_BYTES_MAX} characters"
    if NO_DUCK_NAME.fullmatch(name):
        return (
            f"'{name}' cannot be a duck's name: dnsmasq, which serves network boot, would read it "
            f"as a time or a keyword; another one: 'duck-{name}'"
        )
    return ""


def outside(address: IPv4Address, subnet: IPv4Network) -> str:
    """Why an address cannot be a member of the subnet; empty if it can."""
    if address not in subnet:
        return f"is outside of its domain's subnet {subnet}"
    if address == subnet.network_address:
        return f"is the network address of {subnet}"
    if address == subnet.broadcast_address:
        return f"is the broadcast address of {subnet}"
    return ""


def _one_power(located: Located) -> Power:
    if not isinstance(located.value, YamlMapping):
        raise FieldError(f"expected a mapping with 'backend', found {located.kind()}")
    options = {key: str(value) for key, value in located.value.plain().items()}
    for key, value in located.value.items():
        if isinstance(value.value, (YamlMapping, list)):
            raise FieldError(f"power option '{key}' must be a text, found {value.kind()}")
        _refuse_unnameable(value.text)
    if "backend" not in options:
        raise FieldError(f"'backend' is missing; one of {', '.join(POWER_BACKENDS)}")
    backend = options.pop("backend")
    if backend not in POWER_BACKENDS:
        nearest = difflib.get_close_matches(backend, POWER_BACKENDS, n=1)
        suggestion = f"; did you mean '{nearest[0]}'?" if nearest else ""
        known = ", ".join(POWER_BACKENDS)
        raise FieldError(f"power backend '{backend}' is not one of {known}{suggestion}")
    if "password" in options:
        raise FieldError("'password' in an inventory is no secret; name a 'password_file'")
    allowed = POWER_BACKENDS[backend]
    for name in allowed.required:
        if name not in options:
            raise FieldError(f"power backend '{backend}' needs '{name}'")
    for name in options:
        if name not in allowed.required + allowed.optional:
            known = ", ".join(allowed.required + allowed.optional) or "no options"
            raise FieldError(f"power backend '{backend}' has no option '{name}' (it has: {known})")
    _check_power_options(backend, options, located.value)
    return Power(backend, options)


def _check_power_options(backend: str, options: Mapping[str, str], given: YamlMapping) -> None:
    """Every value that its backend could not use, with its line."""
    mistakes = []
    for name, text in options.items():
        value = given.entries[name]
        problem = "is empty" if value.value is None else option_problem(backend, name, text)
        if not problem and (backend, name) == ("wol", "mac"):
            try:
                read_mac(value)
            except FieldError as error:
                problem = str(error)
        if problem:
            line = given.key_lines[name]
            mistakes.append((f"option '{name}' of power backend '{backend}': {problem}", line))
    _raise_all(mistakes)


def _raise_all(mistakes: list[tuple[str, int]]) -> None:
    if mistakes:
        error = FieldError(mistakes[0][0])
        error.mistakes = mistakes
        raise error


def _power(located: Located) -> tuple[Power, ...]:
    """One backend, or a list to go through until one has worked."""
    items = located.value if isinstance(located.value, list) else [located]
    if not items:
        raise FieldError("the list of power backends is empty")
    found: list[Power] = []
    mistakes: list[tuple[str, int]] = []
    for item in items:
        try:
            found.append(_one_power(item))
        except FieldError as error:
            mistakes += error.mistakes
    _raise_all(mistakes)
    return tuple(found)


@dataclass(frozen=True)
class Field:
    """A variable: the places where it may stand, and its reader."""

    read: Reader
    levels: frozenset[Level]


def _field(read: Reader, *levels: Level) -> Field:
    return Field(read, frozenset(levels))


_EVERY_DUCK = (Level.DUCKS, Level.DOMAIN, Level.DUCK)
FIELDS: Mapping[str, Field] = {
    "fleet_name": _field(_pattern(NAME, "a name of a-z, 0-9 and '-'"), Level.ALL),
    "fleet_key_file": _field(_path, Level.ALL),
    "fleet_unknown_ducks": _field(_choice("discover", "boot", "ignore"), Level.ALL),
    "host_gpu": _field(_text, Level.HOST),
    "domain_subnet": _field(_subnet, Level.DOMAIN),
    "domain_host_address": _field(_address, Level.DOMAIN),
    "domain_host_nic": _field(_pattern(NIC_NAME, "a network interface name"), Level.DOMAIN),
    "domain_host_pci": _field(_pci, Level.DOMAIN),
    "domain_host_mac": _field(read_mac, Level.DOMAIN),
    "domain_mtu": _field(_integer(MTU_MIN, MTU_MAX), Level.DUCKS, Level.DOMAIN),
    "domain_dispatch": _field(_choice("unicast", "broadcast"), Level.DUCKS, Level.DOMAIN),
    "domain_device": _field(_text, Level.DUCKS, Level.DOMAIN),
    "domain_cpu": _field(_integer(0, 1023), Level.DOMAIN),
    "domain_boot": _field(_choice("dhcp", "proxy", "off"), Level.DUCKS, Level.DOMAIN),
    "duck_slot": _field(_integer(0, 4095), Level.DUCK),
    "duck_mac": _field(read_mac, Level.DUCK),
    "duck_address": _field(_address, Level.DUCK),
    "duck_port": _field(_integer(1, 65535), *_EVERY_DUCK),
    "duck_image": _field(_choice("linux", "duckos"), *_EVERY_DUCK),
    "duck_ipxe": _field(_choice("snponly", "ipxe"), *_EVERY_DUCK),
    "duck_memory_gib": _field(_integer(1, 4096), *_EVERY_DUCK),
    "duck_cores": _field(_integer(1, CORES_MAX), *_EVERY_DUCK),
    "duck_link_mbps": _field(_integer(10, 400_000), *_EVERY_DUCK),
    "duck_identity": _field(_choice("pinned", "per_boot"), *_EVERY_DUCK),
    "duck_power": _field(_power, *_EVERY_DUCK),
    "duck_temperature_c_max": _field(_integer(30, 120), *_EVERY_DUCK),
    "duck_loss_permille_max": _field(_integer(0, 1000), *_EVERY_DUCK),
}


def explain_misplaced(key: str, level: Level) -> str:
    """Why ``key`` may not stand at ``level``: misplaced, or unknown with the nearest known one."""
    field = FIELDS.get(key)
    if field is not None:
        places = " or ".join(place.value for place in Level if place in field.levels)
        return f"'{key}' does not belong to {level.value}, but to {places}"
    known = [name for name, known_field in FIELDS.items() if level in known_field.levels]
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if nearest:
        return f"unknown key '{key}'; did you mean '{nearest[0]}'?"
    return f"unknown key '{key}' ({level.value} may set: {', '.join(known)}, ansible_*)"


def read_variables(located: Located | None, level: Level, problems: list[str]) -> dict[str, Any]:
    """Checks and reads the variables of one place; mistakes go to ``problems``.

    The values of the result are ``(value, line)``. Variables of Ansible are left alone.
    """
    values: dict[str, Any] = {}
    if located is None or located.value is None:
        return values
    if not isinstance(located.value, YamlMapping):
        problems.append(f"line {located.line}: expected a mapping, found {located.kind()}")
        return values
    for key, value in located.value.items():
        line = located.value.key_lines[key]
        if key.startswith("ansible_"):
            continue
        field = FIELDS.get(key)
        if field is None or level not in field.levels:
            problems.append(f"line {line}: {explain_misplaced(key, level)}")
            continue
        try:
            values[key] = (field.read(value), line)
        except FieldError as error:
            problems += [f"line {at or line}: {key}: {text}" for text, at in error.mistakes]
    return values


def ansible_variables(located: Located | None) -> dict[str, Any]:
    """The ``ansible_*`` variables of one place, untouched."""
    if located is None or not isinstance(located.value, YamlMapping):
        return {}
    return {k: plain(v) for k, v in located.value.items() if k.startswith("ansible_")}
