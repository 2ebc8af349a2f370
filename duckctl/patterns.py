"""Which ducks a pattern means: a pure function from text and fleet to ducks.

A pattern is a list of terms, separated by commas or blanks:
``all``, a duck, a domain or another group, a range ``duck[01-08]``, a glob ``duck0*``.
``&term`` keeps only those that are in the term too, ``!term`` takes ducks out; as in Ansible their
place does not matter: exclusions win.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence

from duckctl.errors import UsageError

RANGE = re.compile(r"\[([0-9]+|[a-zA-Z])[:-]([0-9]+|[a-zA-Z])(?::([0-9]+))?\]")
EXPANDED_MAX = 4096
RANGE_CHARACTERS_MAX = 256


def expand_range(text: str) -> list[str]:
    """``duck[01:03]`` -> duck01, duck02, duck03 (padding kept); text without a range -> itself.

    Raises ValueError with the reason if the range is malformed, empty or huge.
    """
    if "[" not in text and "]" not in text:
        return [text]
    if len(text) > RANGE_CHARACTERS_MAX:
        raise ValueError(f"range '{text[:40]}…' has more than {RANGE_CHARACTERS_MAX} characters")
    names, end = [""], 0
    for match in RANGE.finditer(text):
        between = text[end : match.start()]
        steps = _steps(match, text)
        if len(names) * len(steps) > EXPANDED_MAX:
            raise ValueError(f"range '{text}' has more than {EXPANDED_MAX} names")
        names = [name + between + step for name in names for step in steps]
        end = match.end()
    if re.search(r"[][]", RANGE.sub("", text)):
        raise ValueError(f"'{text}' is not a range; write it like duck[01:32]")
    return [name + text[end:] for name in names]


def _steps(match: re.Match[str], text: str) -> list[str]:
    """What one pair of brackets stands for; one more than EXPANDED_MAX at most."""
    first, last, step_text = match.groups()
    step = int(step_text or "1")
    if step < 1 or first.isdigit() != last.isdigit():
        raise ValueError(f"'{text}' is not a range; write it like duck[01:32]")
    if first.isdigit():
        if len(first) > len(last):
            raise ValueError(f"range '{text}': '{last}' is shorter than '{first}'")
        numbers = range(int(first), int(last) + 1, step)
        names = [str(number).zfill(len(first)) for number in numbers[: EXPANDED_MAX + 1]]
    else:
        names = [chr(code) for code in range(ord(first), ord(last) + 1, step)]
    if not names:
        raise ValueError(f"range '{text}' is empty")
    return names


def _term_matches(term: str, names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if term == "all":
        return set(names)
    if term in groups:
        return set(groups[term])
    if term in names:
        return {term}
    if "*" in term or "?" in term:
        matched = set(fnmatch.filter(names, term))
        for group in fnmatch.filter(list(groups), term):
            matched |= set(groups[group])
        if matched:
            return matched
        raise UsageError(f"no duck and no group matches '{term}'", _known(names, groups))
    if "[" in term:
        try:
            wanted = expand_range(term)
        except ValueError as error:
            raise UsageError(str(error)) from error
        matched = set()
        for name in wanted:
            matched |= _term_matches(name, names, groups)
        return matched
    nearest = difflib.get_close_matches(term, [*names, *groups], n=1)
    suggestion = f"; did you mean '{nearest[0]}'?" if nearest else ""
    raise UsageError(f"there is no duck or group '{term}'{suggestion}", _known(names, groups))


def _known(names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    if not names:
        return "the inventory has no ducks"
    span = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
    return f"ducks: {span}; groups: {', '.join(groups) or 'none'}"


def select_names(
    pattern: str, names: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> list[str]:
    """The names that ``pattern`` means, in the order of ``names``; an empty match is an error."""
    terms = [term for term in re.split(r"[,\s]+", pattern.strip()) if term]
    if not terms:
        raise UsageError("the pattern is empty", _known(names, groups))
    parts: dict[str, list[set[str]]] = {"": [], "&": [], "!": []}
    for term in terms:
        sign = term[0] if term[0] in "&!" else ""
        body = term[len(sign) :]
        if not body or body[0] in "&!":
            raise UsageError(f"'{term}' is not a term of a pattern", _known(names, groups))
        parts[sign].append(_term_matches(body, names, groups))
    selected = set().union(*parts[""]) if parts[""] else set(names)
    for kept in parts["&"]:
        selected &= kept
    for excluded in parts["!"]:
        selected -= excluded
    if not selected:
        raise UsageError(f"pattern '{pattern}' leaves no duck", _known(names, groups))
    return [name for name in names if name in selected]
