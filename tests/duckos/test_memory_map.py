"""The memory planner of duckos: what guests and boxes of 64 MB to 32 GB get, and that no firmware's
map makes it hand out memory twice."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import pairwise

import duckos_host
import pytest
from duckos_host import DUCKOS
from hypothesis import given, settings
from hypothesis import strategies as st

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RANGES_MAX, PARTS_MAX = 256, 32


class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Ranges(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_uint32),
        ("dropped", ctypes.c_uint32),
        ("range", Range * RANGES_MAX),
    ]


class Plan(ctypes.Structure):
    _fields_ = [
        ("usable_bytes", ctypes.c_uint64),
        ("start_page", ctypes.c_uint64),
        ("arena", Range),
        ("part_count", ctypes.c_uint32),
        ("part", Range * PARTS_MAX),
        ("window_bytes", ctypes.c_uint64),
        ("unused_bytes", ctypes.c_uint64),
    ]


Spans = list[tuple[int, int]]  # (base, bytes)


@dataclass(frozen=True)
class Planned:
    result: int
    plan: Plan

    def pieces(self) -> Spans:
        parts = [(part.base, part.bytes) for part in self.plan.part[: self.plan.part_count]]
        page = [(self.plan.start_page, 4 * KIB)] if self.plan.start_page else []
        return [(self.plan.arena.base, self.plan.arena.bytes), *parts, *page]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("map")
    return duckos_host.build_library(folder, DUCKOS / "memory/map.c")


def make_plan(library: ctypes.CDLL, usable: Spans, reserved: Spans) -> Planned:
    lists = (Ranges(), Ranges())
    for ranges, spans in zip(lists, (usable, reserved), strict=True):
        for base, size in spans:
            library.memory_ranges_add(
                ctypes.byref(ranges), ctypes.c_uint64(base), ctypes.c_uint64(size)
            )
    plan = Plan()
    result = library.memory_plan_make(*map(ctypes.byref, (*lists, plan)))
    return Planned(result, plan)


def check_invariants(planned: Planned, usable: Spans, reserved: Spans) -> None:
    pieces = sorted(planned.pieces())
    for (base, size), (following, _) in pairwise(pieces):
        assert base + size <= following, "two uses of the same memory"
    for base, size in pieces:
        for taken, taken_bytes in (span for span in reserved if span[1] != 0):
            assert base + size <= taken or taken + taken_bytes <= base, "reserved memory in use"
        at = base
        while at < base + size:  # covered by usable ranges, which may touch or overlap
            ends = [b + s for b, s in usable if b <= at < b + s]
            assert ends, f"{at:#x} is not usable memory"
            at = max(ends)
    plan = planned.plan
    parts = plan.part[: plan.part_count]
    assert all(part.base % (2 * MIB) == 0 == part.bytes % (2 * MIB) for part in parts)
    assert [part.bytes for part in parts] == sorted((p.bytes for p in parts), reverse=True)
    assert plan.arena.base % (2 * MIB) == 0
    assert plan.arena.base + plan.arena.bytes <= 4 * GIB
    assert plan.window_bytes == sum(part.bytes for part in parts)


IMAGE = (0xFF000, 320 * KIB)
LOW = [(0, 0x9FC00), (0x9FC00, 0x400)]  # the second one: BIOS data, reserved


def pc(memory_bytes: int, low_end: int) -> Spans:
    """A PC's usable memory: below the PCI hole, and above 4 GiB."""
    low = min(memory_bytes, low_end)
    spans = [LOW[0], (MIB, low - MIB)]
    return spans if memory_bytes == low else [*spans, (4 * GIB, memory_bytes - low)]


@pytest.mark.parametrize("megabytes", [32, 64, 128, 256, 1024, 3072, 4096, 8192, 16384])
def test_guests_of_every_size_get_most_of_their_memory(
    library: ctypes.CDLL, megabytes: int
) -> None:
    """What a session may use is all but the arena (1/8, 8 to 48 MB) and 4 MB around the image."""
    usable, reserved = pc(megabytes * MIB, 3 * GIB), [LOW[1], IMAGE]
    planned = make_plan(library, usable, reserved)
    assert planned.result == 0
    check_invariants(planned, usable, reserved)
    arena = min(max(megabytes * MIB // 8, 8 * MIB), 48 * MIB)
    assert planned.plan.arena.bytes == arena
    assert planned.plan.window_bytes >= megabytes * MIB - arena - 4 * MIB


# A mini-PC with 32 GB, as its UEFI reports it (shape of a real map, sizes rounded): graphics memory
# and firmware below 4 GiB cut holes, the rest lies above.
BOX_32_GB_USABLE = [
    (0x1000, 0x9D000),
    (0x100000, 0x3FF00000),  # to 1 GiB
    (0x40400000, 0x2A3C0000),  # a hole of 4 MiB for firmware
    (0x6A8C0000, 0x0A740000),  # a hole of 1 MiB
    (0x75FFF000, 0x1000),  # a page between ACPI tables
    (4 * GIB, 30 * GIB - 512 * MIB),  # 2 GiB of the 32 lie below 4 GiB; graphics took 0.5
]
BOX_32_GB_RESERVED = [
    (0x9E000, 0x62000),
    (0x40000000, 0x400000),
    (0x6A7C0000, 0x100000),
    (0x75000000, 0x9000000),
    (0xE0000000, 0x10000000),
    (0xFEC00000, 0x1400000),
    (0x40000000, 0x400000),  # listed twice, as firmware does
    (0x200000, 0x51000),  # the image, loaded by UEFI at 2 MiB
]


def test_32_gb_with_holes_gives_30_5_gb_for_weights(library: ctypes.CDLL) -> None:
    """At least 30.5 of 32 GB lie in the window, the largest part first and physically whole."""
    planned = make_plan(library, BOX_32_GB_USABLE, BOX_32_GB_RESERVED)
    assert planned.result == 0
    check_invariants(planned, BOX_32_GB_USABLE, BOX_32_GB_RESERVED)
    plan = planned.plan
    assert plan.window_bytes >= 30.5e9
    assert plan.window_bytes >= 30.5 * GIB
    assert plan.part[0].base == 4 * GIB
    assert plan.part[0].bytes == 30 * GIB - 512 * MIB
    assert plan.unused_bytes <= 8 * MIB
    assert plan.start_page == 0x8000


def test_the_arena_takes_the_smallest_range_that_holds_it(library: ctypes.CDLL) -> None:
    """Large ranges stay whole for weights: the arena goes into the smallest fitting one."""
    usable = [(MIB, 511 * MIB), (600 * MIB, 100 * MIB), (4 * GIB, 8 * GIB)]
    planned = make_plan(library, usable, [])
    assert planned.plan.arena.base == 600 * MIB
    assert [part.base for part in planned.plan.part[:3]] == [4 * GIB, 2 * MIB, 648 * MIB]


@pytest.mark.parametrize(
    ("usable", "result"),
    [([], 1), ([(MIB, 6 * MIB)], 1), ([(4 * GIB, GIB)], 1), ([(2 * MIB, 8 * MIB)], 2)],
)
def test_too_little_memory_is_an_error(library: ctypes.CDLL, usable: Spans, result: int) -> None:
    """Without 8 MiB below 4 GiB (1), or with nothing left for sessions (2), the planner says so."""
    assert make_plan(library, usable, []).result == result


def test_reserved_wins_over_usable(library: ctypes.CDLL) -> None:
    """Firmware that lists a range as both usable and reserved gets it left alone."""
    usable, reserved = [(MIB, GIB)], [(512 * MIB, 1), (64 * MIB - 1, 2)]
    planned = make_plan(library, usable, reserved)
    check_invariants(planned, usable, reserved)
    assert planned.plan.part_count == 3


def test_more_ranges_than_places_lose_memory_only(library: ctypes.CDLL) -> None:
    """A map of 1,000 pieces is cut to what fits: nothing wrong is handed out."""
    usable = [(MIB + i * 16 * MIB, 12 * MIB) for i in range(1000)]
    planned = make_plan(library, usable, [])
    assert planned.result == 0
    check_invariants(planned, usable, [])
    assert planned.plan.part_count == PARTS_MAX


def test_a_reserved_range_without_a_place_is_an_error(library: ctypes.CDLL) -> None:
    """When what must not be used can't be remembered, nothing is used."""
    reserved = [(MIB + i * 2 * MIB, 4096) for i in range(RANGES_MAX + 1)]
    assert make_plan(library, [(MIB, 2 * GIB)], reserved).result == 3


SPAN = st.tuples(st.integers(0, 1 << 23), st.integers(0, 1 << 21)).map(
    lambda pages: (pages[0] * 4096, pages[1] * 4096)
)
ODD = st.tuples(st.integers(0, 1 << 64), st.integers(0, 1 << 64)).map(
    lambda pair: (pair[0] % (1 << 64), pair[1] % (1 << 64))
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SPAN, max_size=40), st.lists(SPAN | ODD, max_size=40))
def test_no_map_makes_memory_be_used_twice(
    library: ctypes.CDLL, usable: Spans, reserved: Spans
) -> None:
    """For any map, overlapping and unsorted, uses are disjoint, usable and never reserved."""
    planned = make_plan(library, usable, reserved)
    if planned.result == 0:
        check_invariants(planned, usable, reserved)
