"""Where the Linux image's kernel comes from: a Debian package file, or the installed package.

On a machine that is not Debian, download the package of linux-image-amd64 from a Debian mirror and
name it with ``--kernel-package``; nothing is installed. With apt, ``--download`` fetches it.
"""

from __future__ import annotations

import io
import lzma
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from duckctl.errors import UsageError
from duckctl.image.elf_module import SUFFIXES, module_name, read_module, unzstd
from duckctl.image.manifest import ImageError, describe_file

PACKAGE_BYTES_MAX = 512 << 20
UNPACKED_BYTES_MAX = 1 << 30
META_PACKAGE = "linux-image-amd64"
# Folders of a kernel package that modules of the image may come from.
MODULE_FOLDERS = re.compile(
    r"kernel/(arch/x86|lib|net/core|drivers/"
    r"(net/ethernet|net/phy|net/mdio|net/[^/]*$|virtio|ptp|pps|hwmon|watchdog|i2c|dca|mfd|thermal))"
)


@dataclass(frozen=True)
class KernelSource:
    """A kernel: its release, its image, its modules by name, the names built in."""

    release: str
    origin: str  # for the manifest: what and which bytes
    vmlinuz: bytes
    read: Callable[[str], bytes | None]
    built_in: frozenset[str]


def from_package(package: Path, scratch: Path) -> KernelSource:
    """The kernel of a ``linux-image-*.deb``; its parts are unpacked below ``scratch``."""
    if not package.is_file():
        raise UsageError(f"there is no kernel package {package}")
    if package.stat().st_size > PACKAGE_BYTES_MAX:
        raise UsageError(f"{package} is larger than any kernel package")
    try:
        with _data_archive(package) as archive:
            _unpack(archive, scratch)
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise ImageError(f"cannot unpack {package}: {error}", "download it again") from error
    kernels = sorted((scratch / "boot").glob("vmlinuz-*"))
    if not kernels:
        depends = META_PACKAGE in package.name
        raise UsageError(
            f"{package} has no kernel in it",
            "it only depends on the one with the version in its name" if depends else "",
        )
    release = kernels[0].name.removeprefix("vmlinuz-")
    origin = f"{package.name} sha256 {describe_file(package).sha256}"
    roots = (scratch / "lib/modules" / release, scratch / "usr/lib/modules" / release)
    root = next((path for path in roots if path.is_dir()), roots[0])
    return _source(release, origin, kernels[0], root)


def from_system(release: str | None, root: Path = Path("/")) -> KernelSource:
    """An installed kernel, by default the newest that has both an image and modules."""
    folders = sorted((root / "lib/modules").glob("*"), key=lambda path: _version_key(path.name))
    usable = [f for f in folders if (root / "boot" / f"vmlinuz-{f.name}").is_file()]
    if release is not None:
        usable = [folder for folder in usable if folder.name == release]
    if not usable:
        raise UsageError(
            f"no installed kernel{f' {release}' if release else ''} in {root / 'boot'}",
            "name a package: --kernel-package linux-image-….deb, or let apt fetch it: --download",
        )
    kernel = root / "boot" / f"vmlinuz-{usable[-1].name}"
    origin = f"installed {usable[-1].name} sha256 {describe_file(kernel).sha256}"
    return _source(usable[-1].name, origin, kernel, usable[-1])


def download_package(folder: Path) -> Path:
    """Fetches Debian's present kernel package with apt, without installing it."""
    if shutil.which("apt-get") is None:
        raise UsageError("there is no apt-get here", "name a package: --kernel-package FILE.deb")
    shown = _apt(["apt-cache", "depends", META_PACKAGE], folder)
    match = re.search(r"Depends: (linux-image-[0-9][^\s]*)", shown)
    if match is None:
        raise ImageError(f"apt does not know {META_PACKAGE}", "sudo apt-get update")
    name = match.group(1)
    _apt(["apt-get", "download", name], folder)
    found = sorted(folder.glob(f"{name}_*.deb"))
    if not found:
        raise ImageError(f"apt-get download {name} left no file in {folder}")
    return found[-1]


def _apt(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ImageError(f"{' '.join(command)}: {last}", "sudo apt-get update")
    return done.stdout


def _version_key(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def _source(release: str, origin: str, kernel: Path, modules: Path) -> KernelSource:
    paths: dict[str, Path] = {}
    for path in sorted((modules / "kernel").rglob("*")):
        if path.name.endswith(SUFFIXES):
            paths[module_name(path.name)] = path
    try:
        built_in = (modules / "modules.builtin").read_text(encoding="ascii").split()
    except OSError:
        built_in = []

    def read(name: str) -> bytes | None:
        path = paths.get(name)
        return read_module(path) if path is not None else None

    names = frozenset(module_name(path) for path in built_in)
    return KernelSource(release, origin, kernel.read_bytes(), read, names)


def _data_archive(package: Path) -> tarfile.TarFile:
    """The data part of a Debian package: an ar archive, see deb(5)."""
    data = package.read_bytes()
    if data[:8] != b"!<arch>\n":
        raise UsageError(f"{package} is no Debian package")
    at = 8
    while at + 60 <= len(data):
        name = data[at : at + 16].decode("ascii", errors="replace").strip().rstrip("/")
        try:
            size = int(data[at + 48 : at + 58])
        except ValueError:
            break
        body = data[at + 60 : at + 60 + size]
        if len(body) != size:
            raise ImageError(f"{package} is cut off", "download it again")
        if name.startswith("data.tar"):
            if name.endswith(".zst"):
                return tarfile.open(fileobj=io.BytesIO(unzstd(body)), mode="r|")
            return tarfile.open(fileobj=io.BytesIO(body), mode="r|*")
        at += 60 + size + (size & 1)
    raise UsageError(f"{package} has no data.tar: it is no Debian package")


def _unpack(archive: tarfile.TarFile, scratch: Path) -> None:
    """Kernel and the modules that may be needed; regular files only, below ``scratch``."""
    total = 0
    for member in archive:
        name = member.name.removeprefix("./")
        inner = re.sub(r"^(usr/)?lib/modules/[^/]+/", "", name)
        wanted = name.startswith("boot/vmlinuz-") or inner == "modules.builtin" or (
            inner != name and MODULE_FOLDERS.match(inner)
        )  # fmt: skip
        if not wanted or not member.isfile() or ".." in name.split("/"):
            continue
        total += member.size
        if total > UNPACKED_BYTES_MAX:
            raise ImageError(f"the package unpacks to more than {UNPACKED_BYTES_MAX} bytes")
        source = archive.extractfile(member)
        if source is not None:
            place = scratch / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read())
