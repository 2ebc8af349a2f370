"""Client system architectures of DHCP option 93 (RFC 4578 2.1 and the IANA registry).

RFC 4578's text and its errata disagree about 7 and 9; x86-64 firmware sends either, so both are
the same here. Codes 6 and 15 are named 32-bit UEFI; they are answered like 64-bit ones because
some firmware mislabels itself, and a really 32-bit one refuses the file by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Arch:
    """One kind of boot firmware. ``service``: its name in dnsmasq's pxe-service lines."""

    code: int
    firmware: Literal["bios", "uefi"]
    over: Literal["tftp", "http"]
    service: str
    text: str

    @property
    def tag(self) -> str:
        """The dnsmasq tag of this code; the log's tag line tells it back (option 93 itself)."""
        return f"arch{self.code}"


ARCHS = {
    arch.code: arch
    for arch in (
        Arch(0, "bios", "tftp", "x86PC", "BIOS"),
        Arch(6, "uefi", "tftp", "IA32_EFI", "UEFI (IA32)"),
        Arch(7, "uefi", "tftp", "BC_EFI", "UEFI x86-64 (code 7)"),
        Arch(9, "uefi", "tftp", "X86-64_EFI", "UEFI x86-64 (code 9)"),
        Arch(15, "uefi", "http", "", "UEFI HTTP boot (IA32)"),
        Arch(16, "uefi", "http", "", "UEFI HTTP boot x86-64"),
        Arch(20, "bios", "http", "", "BIOS HTTP boot"),
    )
}
