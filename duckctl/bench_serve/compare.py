"""Compares two archives: what changed, and whether it is more than noise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.bench_serve.run import SCHEMA_VERSION
from duckctl.bench_serve.statistics import Verdict, judge
from duckctl.errors import UsageError

METRICS = (("decode_tokens_per_s", True), ("prefill_tokens_per_s", True), ("ttft_ms", False))
SETTINGS = ("model", "repeats", "warm_up", "note")


@dataclass(frozen=True)
class Change:
    """One metric of one case."""

    case: str
    metric: str
    old: float
    new: float
    verdict: Verdict

    @property
    def ratio(self) -> float:
        return self.new / self.old - 1


@dataclass(frozen=True)
class Comparison:
    """All that differs. ``token_notes`` names cases with other tokens."""

    changes: tuple[Change, ...]
    token_notes: tuple[str, ...]
    setting_notes: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Other tokens, or something slower beyond noise."""
        return bool(self.token_notes) or any(c.verdict == "slower" for c in self.changes)


def load_run(folder: Path) -> dict[str, Any]:
    """run.json of an archive."""
    path = folder / "run.json"
    hint = "an archive is a folder made by `duckctl bench serve --archive`"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", hint) from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint) from None
    if not isinstance(run, dict) or run.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{path} is no run of schema version {SCHEMA_VERSION}", hint)
    return run


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Case by case, in the order of the old run."""
    old_cases = {case["name"]: case for case in old["cases"]}
    new_cases = {case["name"]: case for case in new["cases"]}
    shared = [name for name in old_cases if name in new_cases]
    if not shared:
        raise UsageError("the two archives have no case in common")
    changes = [
        change for name in shared for change in _changes(name, old_cases[name], new_cases[name])
    ]
    notes = [_token_note(name, old_cases[name], new_cases[name]) for name in shared]
    only = [f"{name}: only in the first" for name in old_cases if name not in new_cases]
    only += [f"{name}: only in the second" for name in new_cases if name not in old_cases]
    return Comparison(
        tuple(changes), tuple(n for n in notes if n), tuple(_settings(old, new)), tuple(only)
    )


def _changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    found = []
    for metric, higher_is_better in METRICS:
        before = [repeat[metric] for repeat in old["repeats"] if metric in repeat]
        after = [repeat[metric] for repeat in new["repeats"] if metric in repeat]
        if before and after:
            verdict = judge(before, after, higher_is_better)
            medians = (old["summary"][metric]["median"], new["summary"][metric]["median"])
            found.append(Change(name, metric, *medians, verdict))
    return found


def _token_note(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    before: Sequence[int] = old["token_ids"]
    after: Sequence[int] = new["token_ids"]
    if before == after:
        return ""
    shorter = min(len(before), len(after))
    place = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    return f"{name}: tokens differ from number {place} on ({len(before)} and {len(after)} tokens)"


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    pairs = [(key, old.get(key), new.get(key)) for key in SETTINGS]
    names = dict.fromkeys([*old["versions"], *new["versions"]])
    pairs += [(name, old["versions"].get(name), new["versions"].get(name)) for name in names]
    pairs.append(("ducks", len(old["server"]["ducks"]), len(new["server"]["ducks"])))
    return [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]
