"""Fleets with keys, a made-up Debian kernel package, and the real one where it can be had."""

from __future__ import annotations

import io
import lzma
import os
import struct
import tarfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from duckctl.image.duckos import BLOCK_BYTES, BLOCK_MAGIC
from duckctl.native import native_path

INVENTORY = """
all:
  vars: {fleet_name: shelf}
  children:
    ducks:
      children:
        dom0:
          vars: {domain_subnet: 198.18.0.0/24, domain_host_address: 198.18.0.1}
          hosts:
            duck01: {duck_mac: "52:54:00:00:00:01", duck_address: 198.18.0.11, duck_image: linux}
"""


def make_fleet_dir(folder: Path) -> Path:
    """An inventory with a key pair; gives the inventory."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    numbers = key.public_key().public_numbers()
    scalar = key.private_numbers().private_value
    (folder / "fleet.key").write_text(f"duck-p256-private:{scalar:064x}\n")
    (folder / "fleet.key").chmod(0o600)
    (folder / "fleet.pub").write_text(f"duck-p256-public:04{numbers.x:064x}{numbers.y:064x}\n")
    path = folder / "shelf.yml"
    path.write_text(INVENTORY)
    return path


def made_up_duckos(size: int = 64 * 1024, at: int = 8192) -> bytes:
    """The form of duckos.img: bytes with the build hash and an empty config block."""
    image = bytearray(os.urandom(size).replace(BLOCK_MAGIC, bytes(8)))
    image[at : at + BLOCK_BYTES] = BLOCK_MAGIC + bytes(BLOCK_BYTES - len(BLOCK_MAGIC))
    image[64 : 64 + 40] = native_path("build-hash").read_bytes().strip()
    return bytes(image)


def made_up_module(depends: str = "", softdep: str = "") -> bytes:
    """An ELF64 file with a .modinfo section and nothing else."""
    info = f"license=GPL\0depends={depends}\0".encode()
    if softdep:
        info += f"softdep={softdep}\0".encode()
    names = b"\0.modinfo\0.shstrtab\0"
    body_at, names_at = 64, 64 + len(info)
    table_at = (names_at + len(names) + 7) // 8 * 8
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 0x28, table_at)
    struct.pack_into("<HHH", head, 0x3A, 64, 3, 2)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, body_at, len(info), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return (bytes(head) + info + names).ljust(table_at, b"\0") + sections


def deb(files: dict[str, bytes], kind: str = "xz") -> bytes:
    """A Debian package (deb(5)) with these files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    body = lzma.compress(raw.getvalue()) if kind == "xz" else raw.getvalue()
    parts = [("debian-binary", b"2.0\n"), (f"data.tar.{kind}" if kind else "data.tar", body)]
    packed = b"!<arch>\n"
    for name, data in parts:
        packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        packed += data + b"\n" * (len(data) & 1)
    return packed


NIC_MODULES = {
    "virtio": "", "virtio_ring": "", "virtio_pci": "virtio,virtio_ring", "failover": "",
    "virtio_net": "virtio,failover", "e1000": "", "e1000e": "ptp", "ptp": "", "igb": "ptp",
    "igc": "ptp", "libphy": "", "realtek": "libphy", "coretemp": "", "iTCO_wdt": "",
}  # fmt: skip


def made_up_package(release: str = "9.9.9-1-amd64", without: str = "") -> bytes:
    """A kernel package with modules of the right names; r8169 needs realtek softly."""
    root = f"lib/modules/{release}"
    files = {f"boot/vmlinuz-{release}": b"kernel" * 1000, f"{root}/modules.builtin": b""}
    modules = {name: made_up_module(depends) for name, depends in NIC_MODULES.items()}
    modules["r8169"] = made_up_module("libphy", "pre: realtek")
    for name, data in modules.items():
        if name != without:
            files[f"{root}/kernel/drivers/net/ethernet/{name}.ko"] = data
    return deb(files)
