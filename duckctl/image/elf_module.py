"""Kernel modules: their names and what they need, from the ``.modinfo`` section of the file.

The package's modules.dep is made when the package is installed, so a package that was only
downloaded has none; ``depends=`` inside each module says the same.
"""

from __future__ import annotations

import lzma
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from duckctl.image.manifest import ImageError

SUFFIXES = (".ko", ".ko.xz", ".ko.zst", ".ko.gz")
MODULES_MAX = 200


def module_name(path: str) -> str:
    """``kernel/net/core/failover.ko.xz`` -> ``failover``; '-' and '_' are the same."""
    base = path.rsplit("/", 1)[-1]
    for suffix in SUFFIXES:
        base = base.removesuffix(suffix)
    return base.replace("-", "_")


def read_module(path: Path) -> bytes:
    """The uncompressed module; distributions store them plain, as xz or as zstd."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return unzstd(data)
    if path.suffix == ".gz":
        raise ImageError(f"{path}: gzip modules are not supported")
    return data


def unzstd(data: bytes) -> bytes:
    """Decompresses with the zstd program: Python 3.11 has no module for it."""
    if shutil.which("zstd") is None:
        raise ImageError("the kernel's files are zstd-compressed", "sudo apt-get install zstd")
    return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout


def module_facts(data: bytes, key: str) -> list[str]:
    """All values of one key in .modinfo."""
    return [text[len(key) + 1 :] for text in _modinfo(data) if text.startswith(f"{key}=")]


def dependencies(data: bytes) -> list[str]:
    """Modules that must be loaded before, by hard and by soft dependency (``softdep: pre:``)."""
    names = [name for value in module_facts(data, "depends") for name in value.split(",") if name]
    for value in module_facts(data, "softdep"):
        before = value.split("post:")[0]
        names += before.removeprefix("pre:").split() if "pre:" in before else []
    return [name.replace("-", "_") for name in names]


def _modinfo(data: bytes) -> list[str]:
    """The strings of section .modinfo of an ELF64 little-endian file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ImageError("a kernel module is no ELF64 file")
    try:
        table, count, names_index = (
            struct.unpack_from("<Q", data, 0x28)[0],
            struct.unpack_from("<H", data, 0x3C)[0],
            struct.unpack_from("<H", data, 0x3E)[0],
        )
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
        names = sections[names_index][4]
        for section in sections:
            start = names + section[0]
            if data[start : data.index(b"\0", start)] == b".modinfo":
                body = data[section[4] : section[4] + section[5]]
                return [piece.decode(errors="replace") for piece in body.split(b"\0") if piece]
    except (struct.error, IndexError, ValueError) as error:
        raise ImageError("a kernel module is damaged") from error
    return []


def load_order(
    wanted: Sequence[str], read: Callable[[str], bytes | None], built_in: Iterable[str]
) -> list[tuple[str, bytes]]:
    """The wanted modules and all that they need, each after what it needs.

    ``read`` gives a module by name, None when there is none. Raises ImageError for a wanted or
    needed module that is neither there nor built in.
    """
    inside = set(built_in)
    order: list[tuple[str, bytes]] = []
    done: set[str] = set()

    def visit(name: str, needed_by: str) -> None:
        if name in done or name in inside:
            return
        done.add(name)
        data = read(name)
        if data is None:
            raise ImageError(
                f"the kernel has no module {name}"
                + (f" (needed by {needed_by})" if needed_by else ""),
                "use a kernel of Debian (linux-image-amd64)",
            )
        for other in dependencies(data):
            visit(other, name)
        order.append((name, data))
        if len(order) > MODULES_MAX:
            raise ImageError(f"more than {MODULES_MAX} modules are needed")

    for name in wanted:
        visit(name, "")
    return order
