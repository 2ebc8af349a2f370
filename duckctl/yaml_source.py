"""YAML with line numbers: every value knows where it was written.

Scalars keep the text of the file. That matters for MAC addresses: YAML 1.1 reads an unquoted
``10:20:30:40:50:59`` as a number in base 60.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from duckctl.errors import UsageError

BYTES_MAX = 4 << 20
DEPTH_MAX = 16
VALUES_MAX = 200_000  # aliases may repeat a value; this ends a file that multiplies them
PROBLEMS_MAX = 1000
NUMBER_BITS_MAX = 64
NOT_PLAIN = (ValueError, LookupError, AttributeError, TypeError, OverflowError)
"""What PyYAML raises beside its own errors for a value that its tag (``!!bool foo``) belies."""


class InventoryError(UsageError):
    """An inventory that cannot be used. ``problems`` has one line per mistake, all of them."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(
            f"inventory {path} has {count}:{lines}",
            "the format is described in docs/reference/inventory.md; an example is "
            "inventory/rack32.yml",
        )
        self.problems = problems


@dataclass(frozen=True)
class Located:
    """A YAML value and its place. ``value`` is str, None, bool, int, float, Mapping or list."""

    value: Any
    line: int
    text: str = ""  # of a scalar, as written

    def kind(self) -> str:
        """What a person calls this kind of value."""
        if isinstance(self.value, Mapping):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "nothing" if self.value is None else f"'{self.text}'"


class Mapping:
    """A YAML mapping: keys in file order, each with the line of its key."""

    def __init__(self) -> None:
        self.entries: dict[str, Located] = {}
        self.key_lines: dict[str, int] = {}

    def items(self) -> Iterator[tuple[str, Located]]:
        return iter(self.entries.items())

    def plain(self) -> dict[str, Any]:
        """The same as an ordinary dict, without places."""
        return {key: plain(value) for key, value in self.entries.items()}


def plain(located: Located) -> Any:
    """A value without places."""
    if isinstance(located.value, Mapping):
        return located.value.plain()
    if isinstance(located.value, list):
        return [plain(item) for item in located.value]
    return located.value


class TooManyProblemsError(Exception):
    """Reading on would only fill the memory."""


class Problems(list[str]):
    """The mistakes of a file as they are found; a file with very many of them is read no further.

    Raises TooManyProblemsError.
    """

    def append(self, problem: str) -> None:
        super().append(problem)
        if len(self) >= PROBLEMS_MAX:
            raise TooManyProblemsError


def in_line_order(problems: list[str]) -> list[str]:
    """The mistakes as a person goes through the file."""

    def line(problem: str) -> int:
        word = problem.removeprefix("line ").split(":")[0]
        return int(word) if word.isdigit() else 0

    return sorted(problems, key=line)


class _Converter:
    """YAML nodes to Located values; mistakes go to ``problems``."""

    def __init__(self, constructor: yaml.SafeLoader) -> None:
        self.constructor = constructor
        self.problems = Problems()
        self.value_count = 0

    def convert(self, node: yaml.Node, depth: int = 0) -> Located:
        line = node.start_mark.line + 1
        self.value_count += 1
        if depth > DEPTH_MAX or self.value_count > VALUES_MAX:
            raise _TooLargeError(f"line {line}: nested or repeated (by aliases) too often")
        if isinstance(node, yaml.SequenceNode):
            return Located([self.convert(child, depth + 1) for child in node.value], line)
        if isinstance(node, yaml.MappingNode):
            return Located(self._mapping(node, depth), line)
        try:
            value = self.constructor.construct_object(node, deep=True)
        except (yaml.YAMLError, *NOT_PLAIN):
            self.problems.append(
                f"line {line}: '{node.value}' is not a value of plain YAML ({node.tag})"
            )
            value = node.value
        if isinstance(value, int) and value.bit_length() > NUMBER_BITS_MAX:
            self.problems.append(
                f"line {line}: '{node.value}' is a number of more than {NUMBER_BITS_MAX} bits"
            )
            value = node.value
        return Located(value, line, str(node.value))

    def _mapping(self, node: yaml.MappingNode, depth: int) -> Mapping:
        mapping = Mapping()
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"line {key_line}: a key must be a text")
                continue
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.problems.append(
                    f"line {key_line}: merge keys (<<) are not supported; "
                    "put common values into vars"
                )
            elif key in mapping.entries:
                first = mapping.key_lines[key]
                self.problems.append(f"line {key_line}: '{key}' is already given in line {first}")
            else:
                mapping.entries[key] = self.convert(value_node, depth + 1)
                mapping.key_lines[key] = key_line
        return mapping


class _TooLargeError(Exception):
    """A document beyond the limits."""


def load(path: Path) -> tuple[Located, list[str]]:
    """The document in a file and the mistakes found on the way (keys given twice, foreign tags)."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise InventoryError(path, [f"the file is larger than {BYTES_MAX >> 20} MiB"])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read inventory {path}: {error.strerror}",
            "name a file with --inventory FILE; `duckctl lab up` writes one for a lab",
        ) from error
    except UnicodeDecodeError as error:
        raise InventoryError(path, [f"byte {error.start} is not UTF-8"]) from error
    loader, node = _compose(text, path)
    if node is None:
        raise InventoryError(path, ["the file is empty"])
    converter = _Converter(loader)
    try:
        return converter.convert(node), converter.problems
    except _TooLargeError as error:
        raise InventoryError(path, [str(error)]) from None
    except TooManyProblemsError:
        raise InventoryError(path, in_line_order(converter.problems)) from None


def _compose(text: str, path: Path) -> tuple[yaml.SafeLoader, yaml.Node | None]:
    """The nodes of a document, and the loader that knows their values."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        return loader, loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InventoryError(path, [f"{where}not valid YAML: {problem}"]) from error
    except (RecursionError, *NOT_PLAIN) as error:
        line = loader.line + 1 if loader is not None else 1
        problem = "nested too deeply"
        if not isinstance(error, RecursionError):  # e.g. an escape beyond the last character
            problem = f"not valid YAML: {error}"
        raise InventoryError(path, [f"line {line}: {problem}"]) from None
