"""JSON as the standard has it: what is read here can be written, sent and read by anybody."""

from __future__ import annotations

import json
from typing import Any

from host_runtime.server.limits import NESTING_MAX


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises UnicodeError for what is no text (lone surrogates are legal in JSON's escapes), and
    ValueError for the rest: bad syntax, NaN, numbers that overflow to infinity, deep nesting.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        _check_nesting(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise _too_deep() from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_nesting(value: Any) -> None:
    """Whoever writes the value later may have less of the stack left than there is here."""
    level = [value]
    for _ in range(NESTING_MAX + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {NESTING_MAX} levels")
