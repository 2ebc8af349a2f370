"""Patterns name exactly the ducks that a person means, and an empty or unknown one is refused."""

from __future__ import annotations

import pytest

from duckctl.errors import UsageError
from duckctl.patterns import expand_range, select_names

NAMES = [f"duck{number:02}" for number in range(1, 17)]
GROUPS = {"domain1": NAMES[:8], "domain2": NAMES[8:], "ducks": NAMES, "canary": ["duck01"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("duck7", ["duck7"]),
        ("duck[01:03]", ["duck01", "duck02", "duck03"]),
        ("duck[08-11]", ["duck08", "duck09", "duck10", "duck11"]),
        ("duck[8:11]", ["duck8", "duck9", "duck10", "duck11"]),
        ("duck[0:6:3]", ["duck0", "duck3", "duck6"]),
        ("rack[a:b]-[1:2]", ["racka-1", "racka-2", "rackb-1", "rackb-2"]),
    ],
)
def test_ranges_expand_with_their_padding(text: str, expected: list[str]) -> None:
    assert expand_range(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("duck[", "duck[1]", "duck[3:1]", "duck[1:a]", "duck[001:99]", "duck[0:9999]", "d[1:9:0]"),
        *("d[0001:4096][0001:4096]", "d[1:65][1:65]", "d[[1:2]", "d[1:2]]", "d[1:2][", "d]"),
        *("d" + "[1:1]" * 2000, "d[1:" + "9" * 5000 + "]"),
    ],
    ids=lambda text: text[:24],
)
def test_malformed_and_huge_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        expand_range(text)


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("all", range(1, 17)),
        ("duck03", [3]),
        ("duck03,duck01", [1, 3]),
        ("duck[01-04] duck16", [1, 2, 3, 4, 16]),
        ("domain1", range(1, 9)),
        ("domain*,!domain2", range(1, 9)),
        ("duck1*", range(10, 17)),
        ("duck0?,!duck[02-09]", [1]),
        ("!domain1", range(9, 17)),
        ("domain1,&duck[07-12]", [7, 8]),
        ("!duck16,domain2", range(9, 16)),
        ("canary", [1]),
    ],
)
def test_patterns_select(pattern: str, numbers: list[int]) -> None:
    assert select_names(pattern, NAMES, GROUPS) == [f"duck{n:02}" for n in numbers]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "pattern is empty"),
        (" , ", "pattern is empty"),
        ("duck99", "no duck or group 'duck99'"),
        ("domian1", "did you mean 'domain1'"),
        ("goose*", "matches 'goose\\*'"),
        ("domain1,!domain1", "leaves no duck"),
        ("!", "not a term"),
        ("!!duck01", "not a term"),
        ("duck[15-17]", "no duck or group 'duck17'"),
        ("duck[3-1]", "is empty"),
        ("d[0001-4096][0001-4096]", "more than 4096 names"),
    ],
)
def test_unknown_and_empty_patterns_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select_names(pattern, NAMES, GROUPS)
