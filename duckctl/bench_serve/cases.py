"""Case files: one prompt and how to ask it, in YAML, read strictly.

schema_version: 1
name: zh-prime
endpoint: chat            # or completion
prompt: 104857601是质数吗  # or prompt_file, prompt_ids, prompt_length
max_tokens: 200
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.errors import UsageError
from duckctl.yaml_source import NOT_PLAIN

SCHEMA_VERSION = 1
SUFFIXES = (".yaml", ".yml")
CASE_BYTES_MAX = 1 << 20
PROMPT_BYTES_MAX = 8 << 20
CASES_MAX = 200
TOKENS_MAX = 1_000_000
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PROMPT_KEYS = ("prompt", "prompt_file", "prompt_ids", "prompt_length")
KEYS: Mapping[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "name": str,
    "endpoint": str,
    "prompt": str,
    "prompt_file": str,
    "prompt_ids": list,
    "prompt_length": dict,
    "max_tokens": int,
    "ignore_eos": bool,
    "temperature": (int, float),
    "seed": int,
    "thinking": bool,
}
HINT = "the format is described in docs/reference/bench-serve.md"


class CaseError(UsageError):
    """A case file that cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"case {path}: {problem}", HINT)


@dataclass(frozen=True)
class Case:
    """One prompt. Exactly one of ``text`` and ``ids`` is set."""

    name: str
    endpoint: str  # chat or completion
    text: str | None
    ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    temperature: float
    seed: int
    thinking: bool

    def request(self, model: str) -> tuple[str, dict[str, Any]]:
        """Path and body of the API request."""
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "ignore_eos": self.ignore_eos,
            "temperature": self.temperature,
            "seed": self.seed,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": self.text}]
            body["thinking"] = self.thinking
            return "/v1/chat/completions", body
        body["prompt"] = list(self.ids) if self.text is None else self.text
        return "/v1/completions", body

    def document(self) -> dict[str, Any]:
        """What the archive keeps of the case."""
        prompt = {"prompt": self.text} if self.text is not None else {"prompt_ids": list(self.ids)}
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "endpoint": self.endpoint,
            **prompt,
            "max_tokens": self.max_tokens,
            "ignore_eos": self.ignore_eos,
            "temperature": self.temperature,
            "seed": self.seed,
            "thinking": self.thinking,
        }


def load_cases(path: Path) -> list[Case]:
    """All cases of a folder, in the order of their file names, or one file."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise UsageError(f"{path} has no case files (*.yaml)", HINT)
    elif path.exists():
        files = [path]
    else:
        raise UsageError(f"there is no {path}", "name a folder of case files, or one case file")
    if len(files) > CASES_MAX:
        raise UsageError(f"{path} has {len(files)} case files, at most {CASES_MAX} are run")
    cases: dict[str, Path] = {}
    found = []
    for file in files:
        case = read_case(file)
        if case.name in cases:
            raise CaseError(file, f"the name '{case.name}' is also that of {cases[case.name]}")
        cases[case.name] = file
        found.append(case)
    return found


def read_case(path: Path) -> Case:
    """One case file, fully checked."""
    raw = _document(path)
    _check_keys(path, raw)
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise CaseError(path, f"schema_version is {raw.get('schema_version')!r}, expected 1")
    name = raw.get("name", path.stem)
    if not NAME.fullmatch(name):
        raise CaseError(path, f"name {name!r}: only a-z, 0-9, '.', '_' and '-', at most 64")
    endpoint = raw.get("endpoint", "chat")
    if endpoint not in ("chat", "completion"):
        raise CaseError(path, f"endpoint is {endpoint!r}, expected chat or completion")
    text, ids = _prompt(path, raw)
    if endpoint == "chat" and text is None:
        raise CaseError(path, "a chat needs text: prompt_ids and prompt_length need completion")
    max_tokens = raw.get("max_tokens", 256)
    if not 1 <= max_tokens <= TOKENS_MAX:
        raise CaseError(path, f"max_tokens is {max_tokens}, expected 1 to {TOKENS_MAX}")
    temperature = float(raw.get("temperature", 0))
    if not 0 <= temperature <= 2:
        raise CaseError(path, f"temperature is {temperature:g}, expected 0 to 2")
    return Case(
        name=name,
        endpoint=endpoint,
        text=text,
        ids=ids,
        max_tokens=max_tokens,
        ignore_eos=raw.get("ignore_eos", False),
        temperature=temperature,
        seed=raw.get("seed", 1),
        thinking=raw.get("thinking", False),
    )


def _document(path: Path) -> dict[str, Any]:
    import yaml

    try:
        if path.stat().st_size > CASE_BYTES_MAX:
            raise CaseError(path, f"is larger than {CASE_BYTES_MAX} bytes")
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(path, f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CaseError(path, "is not UTF-8 text") from None
    except (yaml.YAMLError, RecursionError, *NOT_PLAIN) as error:
        raise CaseError(path, f"is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise CaseError(path, "must be a mapping of keys to values")
    return raw


def _check_keys(path: Path, raw: Mapping[Any, Any]) -> None:
    for key, value in raw.items():
        if key not in KEYS:
            nearest = difflib.get_close_matches(str(key), KEYS, n=1)
            suggestion = f" (did you mean '{nearest[0]}'?)" if nearest else ""
            raise CaseError(path, f"unknown key '{key}'{suggestion}")
        expected = KEYS[key]
        is_bool = isinstance(value, bool) and expected is not bool
        if is_bool or not isinstance(value, expected):
            raise CaseError(path, f"'{key}' is {value!r}, which is not what belongs there")


def _prompt(path: Path, raw: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
    given = [key for key in PROMPT_KEYS if key in raw]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise CaseError(path, f"exactly one of {', '.join(PROMPT_KEYS)} is needed, found {found}")
    value = raw[given[0]]
    if given[0] == "prompt_ids":
        return None, _ids(path, value)
    if given[0] == "prompt_length":
        return None, _random_ids(path, value)
    text = value if given[0] == "prompt" else _file_text(path, path.parent / value)
    if not text.strip():
        raise CaseError(path, "the prompt is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CaseError(path, "the prompt is no text: it has a lone surrogate") from None
    return text, ()


def _file_text(path: Path, file: Path) -> str:
    try:
        if file.stat().st_size > PROMPT_BYTES_MAX:
            raise CaseError(path, f"prompt_file {file} is larger than {PROMPT_BYTES_MAX} bytes")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise CaseError(path, f"prompt_file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CaseError(path, f"prompt_file {file} is not UTF-8 text") from None


def _ids(path: Path, value: list[Any]) -> tuple[int, ...]:
    wrong = [item for item in value if isinstance(item, bool) or not isinstance(item, int)]
    if wrong or not value or min(value) < 0:
        raise CaseError(path, "prompt_ids must be a list of token numbers, at least one")
    return tuple(value)


def _random_ids(path: Path, value: Mapping[str, Any]) -> tuple[int, ...]:
    """``tokens`` seeded random ids in ``first`` to ``last``."""
    keys = {"tokens", "first", "last", "seed"}
    wrong = [n for n in value.values() if isinstance(n, bool) or not isinstance(n, int) or n < 0]
    if set(value) != keys or wrong:
        raise CaseError(path, "prompt_length needs the whole numbers tokens, first, last and seed")
    if not 1 <= value["tokens"] <= TOKENS_MAX or value["first"] > value["last"]:
        raise CaseError(path, "prompt_length: tokens must be 1 or more, first at most last")
    numbers = random.Random(value["seed"])
    return tuple(numbers.randint(value["first"], value["last"]) for _ in range(value["tokens"]))
