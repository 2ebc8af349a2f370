"""Strict reading of the JSON files that host_runtime is given: unknown keys are errors.

Every message says which file, where in it, what was found and what was expected.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from host_runtime.errors import FileFormatError

FILE_BYTES_MAX = 64 << 20


class JsonObject:
    """One JSON object whose keys are taken one by one; ``finish`` refuses what is left over."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FileFormatError(f"{where}: expected an object, found {describe(value)}")
        self.where = where
        self._values: dict[str, Any] = value
        self._taken: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str) -> Any:
        """The raw value of a key that must be there."""
        if key not in self._values:
            raise FileFormatError(f"{self.where}: the key '{key}' is missing")
        self._taken.add(key)
        return self._values[key]

    def fail(self, key: str, problem: str, hint: str = "") -> FileFormatError:
        """The error for a value that was read but makes no sense."""
        return FileFormatError(f"{self.where}: {key}: {problem}", hint)

    def text(self, key: str, *, empty: bool = False) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not (value or empty):
            raise self.fail(key, f"expected a text, found {describe(value)}")
        return value

    def text_or_null(self, key: str) -> str | None:
        return None if self.take(key) is None else self.text(key)

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(
                key, f"expected a whole number from {low} to {high}, found {describe(value)}"
            )
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.text(key)
        if value not in allowed:
            raise self.fail(key, f"'{value}' is not one of {', '.join(allowed)}")
        return value

    def digest(self, key: str) -> bytes:
        """A SHA-256 in 64 hex digits."""
        value = self.text(key)
        try:
            raw = bytes.fromhex(value)
        except ValueError:
            raw = b""
        if len(raw) != 32:
            raise self.fail(key, f"expected 64 hex digits, found {describe(value)}")
        return raw

    def child(self, key: str) -> JsonObject:
        return JsonObject(self.take(key), f"{self.where}: {key}")

    def array(self, key: str) -> list[Any]:
        value = self.take(key)
        if not isinstance(value, list):
            raise self.fail(key, f"expected a list, found {describe(value)}")
        return value

    def children(self, key: str) -> Iterator[JsonObject]:
        for index, value in enumerate(self.array(key)):
            yield JsonObject(value, f"{self.where}: {key}[{index}]")

    def version(self, expected: int) -> None:
        """``schema_version`` first: a newer file is not half understood."""
        found = self.integer("schema_version", 0, 1 << 31)
        if found != expected:
            raise self.fail(
                "schema_version",
                f"is {found}, this version of duckctl reads {expected}",
                "write the file again with the duckctl that reads it",
            )

    def finish(self) -> None:
        unknown = sorted(set(self._values) - self._taken)
        if not unknown:
            return
        close = difflib.get_close_matches(unknown[0], self._taken, n=1)
        meant = f"; did you mean '{close[0]}'?" if close else ""
        raise FileFormatError(
            f"{self.where}: unknown key '{unknown[0]}'{meant}",
            f"known keys: {', '.join(sorted(self._taken))}",
        )


def read_json_object(path: Path, what: str) -> JsonObject:
    """The object in a JSON file; ``what`` names the file's role in messages."""
    where = f"{what} {path}"
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise FileFormatError(f"{where}: longer than {FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"{where}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{where}: is not UTF-8 text") from error
    try:
        value = json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where}: is not valid JSON: {error}") from error
    return JsonObject(value, where)


def describe(value: Any) -> str:
    """A short picture of a found value for messages."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key '{key}' appears twice")
        result[key] = value
    return result


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
