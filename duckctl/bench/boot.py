"""How long a box takes from power-on to HELLO, by way of booting; measured in a qemu lab."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab, stages
from duckctl.lab.vm.shape import VmShape
from duckctl.lab.vm.stages import STAGES, Timing

ONE = VmShape(
    ducks=1,
    domains=1,
    kinds=("qemu",),
    firmware=("bios",),
    nics=("virtio",),
    cores=(1,),
    memory_mib=(64,),
    boot="pxe",
    mtu=1500,
    poll="block",
    dispatch="broadcast",
)
UEFI = replace(ONE, firmware=("uefi",), memory_mib=(256,))
CASES: Mapping[str, VmShape] = {
    "kernel": replace(ONE, boot="kernel"),
    "kernel-e1000e": replace(ONE, boot="kernel", nics=("e1000e",)),
    "kernel-4-cores": replace(ONE, boot="kernel", cores=(4,)),
    "bios": ONE,
    "bios-e1000e": replace(ONE, nics=("e1000e",)),
    "bios-proxy": replace(ONE, boot="proxy"),
    "uefi": UEFI,
    "uefi-e1000e": replace(UEFI, nics=("e1000e",)),
    "uefi-proxy": replace(UEFI, boot="proxy"),
    "uefi-http": replace(UEFI, boot="http"),
    "bios-32-guests": replace(ONE, ducks=32, domains=4),
}
DEFAULT_CASES = ("kernel", "bios", "bios-e1000e", "uefi", "uefi-http")


@dataclass(frozen=True)
class BootFigures:
    """One case. ``runs`` has the slowest guest's seconds per stage, None for a stage not seen."""

    case: str
    guests: int
    runs: tuple[tuple[float | None, ...], ...]

    def medians(self) -> dict[str, float | None]:
        """The median over the runs, by stage."""
        columns = dict(zip(STAGES, zip(*self.runs, strict=True), strict=True))
        return {
            stage: median(times) if (times := [t for t in column if t is not None]) else None
            for stage, column in columns.items()
        }

    def document(self) -> dict[str, object]:
        """For --json."""
        runs = [dict(zip(STAGES, run, strict=True)) for run in self.runs]
        return {"case": self.case, "guests": self.guests, "median": self.medians(), "runs": runs}


def slowest(timings: list[Timing]) -> tuple[float | None, ...]:
    """For each stage the time at which the last guest had reached it."""
    columns = zip(*(timing.times() for timing in timings), strict=True)
    return tuple(None if None in column else max(t for t in column if t) for column in columns)


def measure(case: str, repeats: int, image: str) -> BootFigures:
    """Boots a fresh lab ``repeats`` times. Raises LabError when a guest does not answer."""
    shape = CASES[case]
    return BootFigures(case, shape.ducks, tuple(_runs(shape, repeats, image)))


def _runs(shape: VmShape, repeats: int, image: str) -> Iterator[tuple[float | None, ...]]:
    with tempfile.TemporaryDirectory(prefix="duckctl-bench-") as place:
        folder = LabFolder(Path(place) / "lab")
        for _ in range(repeats):
            try:
                marks = stages.LogMarks.now(folder)
                state = lab.up(folder, shape, image)
                names = [duck.name for duck in state.ducks]
                yield slowest(stages.await_ducks(folder, state, names, marks))
            finally:
                lab.down(folder)
