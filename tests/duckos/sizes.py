"""Lines of duckos by part. As a program it prints the table of docs/reference/duckos.md."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DUCKOS = ROOT / "images" / "duckos"
PARTS = {
    "boot": "formats, UEFI, options, config block",
    "memory": "planner, page tables, arena, window",
    "cpu": "cores, traps, APIC, sensors",
    "time": "clock, alarms, watchdog",
    "console": "serial, screen, log",
    "acpi": "tables, reset, power-off",
    "panic": "panic",
    "pci": "PCI Express",
    "nic": "NIC drivers",
    "net": "Ethernet to DHCP",
    "session": "ring 3",
    ".": "main, platform",
}
SHARED = {"images/core": "the duck core (also in duckd)", "kernels/wire": "sealing, trust"}


def lines_in(folder: Path) -> int:
    """Lines with something on them, comments included."""
    files = [path for path in folder.iterdir() if path.suffix in (".c", ".h", ".S")]
    return sum(1 for path in files for line in path.read_text().splitlines() if line.strip())


def rows() -> dict[str, tuple[int, str]]:
    """Part -> lines, what it is."""
    own = {
        name: (lines_in(DUCKOS / name), what)
        for name, what in PARTS.items()
        if (DUCKOS / name).is_dir()
    }
    return own | {name: (lines_in(ROOT / name), what) for name, what in SHARED.items()}


def table(image_bytes: int) -> str:
    head = ["| part | lines | what |", "|---|---|---|"]
    body = [f"| `{name}` | {lines} | {what} |" for name, (lines, what) in rows().items()]
    total = sum(lines for name, (lines, _) in rows().items() if name not in SHARED)
    foot = [
        f"| all of duckos | {total} | without core and sealing |",
        f"| `duckos.img` | – | {image_bytes // 1024} KB, with BearSSL's used parts; at most 480 |",
    ]
    return "\n".join([*head, *body, *foot])


if __name__ == "__main__":
    from duckctl.native import native_path

    sys.stdout.write(table(native_path("duckos.img").stat().st_size) + "\n")
