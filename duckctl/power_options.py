"""What the values of power options must look like (docs/reference/power.md).

A mistake in one is found when the inventory is read, not when a duck has to be restarted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

METHODS = ("GET", "POST", "PUT")
PORT_MAX = 65535


def _port(text: str) -> str:
    is_port = re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= PORT_MAX
    return "" if is_port else f"'{text}' is not a port from 1 to {PORT_MAX}"


def _url(text: str) -> str:
    """The URL itself is not told: it may hold a password."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if is_whole and re.fullmatch(r"[^\x00-\x1f\x7f]+", text):
        return ""
    return "is not a URL such as http://10.0.0.9/on"


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"is not a command: {error}"
    return "" if words and words[0] else "is empty"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        return f"'{text}' is not a regular expression: {error}"
    return ""


def _method(text: str) -> str:
    return "" if text.upper() in METHODS else f"'{text}' is not one of {', '.join(METHODS)}"


# By backend and option; what is not here may be any text. The MAC of ``wol`` is read as a MAC.
_CHECKS: Mapping[tuple[str, str], Callable[[str], str]] = {
    ("ipmi", "port"): _port,
    ("ssh", "port"): _port,
    ("redfish", "url"): _url,
    **{("http", option): _url for option in ("on_url", "off_url", "status_url")},
    ("http", "on_pattern"): _pattern,
    ("http", "method"): _method,
    **{("command", option): _command for option in ("on", "off", "status")},
    ("command", "on_pattern"): _pattern,
}


def option_problem(backend: str, option: str, text: str) -> str:
    """Why a backend could not use this value; empty for a good one."""
    if not text or "\0" in text:
        return "is empty" if not text else "has a zero byte"
    check = _CHECKS.get((backend, option))
    return check(text) if check else ""
