"""``image build linux``: Debian's kernel, and an initramfs with duckd and the NICs' modules.

The initramfs holds: ``/init`` (images/linux), ``/sbin/duckd``, ``/etc/duck/fleet.pub``, the modules
and their load order in ``/etc/duck/modules``. It is not compressed: the same input gives the same
bytes whatever library is at hand, and nothing has to be unpacked at boot.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckctl
from duckctl.errors import UsageError
from duckctl.image import cpio
from duckctl.image.elf_module import load_order
from duckctl.image.fleet_public import PUBLIC_LABEL, public_id
from duckctl.image.kernel_source import (
    KernelSource,
    download_package,
    from_package,
    from_system,
)
from duckctl.image.manifest import ImageError, ImageManifest, describe_file, install_image
from duckctl.image.staging import build_hash_in, staged_folder
from duckctl.image.uki import find_stub, make_uki
from duckctl.native import native_path

# Cards of the boxes that ducks are made of, virtual ones for the lab, sensors, watchdogs.
MODULES = (
    "virtio_pci", "virtio_net", "e1000", "e1000e", "igb", "igc", "r8169",
    "coretemp", "iTCO_wdt",
)  # fmt: skip
# pcie_aspm=off: I225/I226 lose their link in PCIe L1.2 (field-known erratum). init_on_alloc=0:
# Debian's kernel clears every page that it hands out; clearing the huge pages alone would cost
# seconds at each boot, and what a process maps is cleared in any case.
COMMAND_LINE = "console=tty0 console=ttyS0,115200 panic=10 pcie_aspm=off init_on_alloc=0 quiet"
COMMAND_LINE_BYTES_MAX = 1024  # x86's limit is 2048; iPXE adds the duck's own words
# Kernel, initramfs and UKI each: far below the 3 to 4 GiB at which BIOS loaders break, small enough
# for a 1 GbE port to carry within a second. Weights never belong here.
IMAGE_BYTES_MAX = 64 << 20
POLL = ("spin", "sleep", "block")


@dataclass(frozen=True)
class LinuxOptions:
    """``words``: added to the kernel's command line. ``firmware``: folder with files for
    /lib/firmware (Realtek's rtl_nic; the cards work without, some at lower speeds)."""

    poll: str = "spin"
    words: tuple[str, ...] = ()
    firmware: Path | None = None

    def command_line(self) -> str:
        if self.poll not in POLL:
            raise UsageError(f"poll is one of {', '.join(POLL)}, not '{self.poll}'")
        line = " ".join((COMMAND_LINE, f"duck.poll={self.poll}", *self.words))
        if not re.fullmatch(r"[!-~]+( [!-~]+)*", line):
            raise UsageError("the kernel's command line must be printable ASCII words")
        if len(line) > COMMAND_LINE_BYTES_MAX:
            raise UsageError(f"the kernel's command line is longer than {COMMAND_LINE_BYTES_MAX}")
        return line


@dataclass(frozen=True)
class KernelChoice:
    """Which kernel: a package file, one that apt fetches, or an installed one."""

    package: Path | None = None
    download: bool = False
    release: str | None = None


def build_linux(
    fleet_dir: Path,
    fleet_public: str,
    name: str = "linux",
    kernel: KernelChoice | None = None,
    options: LinuxOptions | None = None,
) -> ImageManifest:
    """Builds and installs the image; ``fleet_public``: 130 hex digits (``read_public``)."""
    choice, chosen = kernel or KernelChoice(), options or LinuxOptions()
    command_line = chosen.command_line()
    with staged_folder(fleet_dir, name) as staged, tempfile.TemporaryDirectory() as scratch:
        source = _kernel(choice, Path(scratch))
        modules = load_order(MODULES, source.read, source.built_in)
        initrd = cpio.archive(_entries(fleet_public, modules, chosen.firmware))
        (staged / "vmlinuz").write_bytes(source.vmlinuz)
        (staged / "initrd.img").write_bytes(initrd)
        files = {
            "kernel": describe_file(staged / "vmlinuz"),
            "initrd": describe_file(staged / "initrd.img"),
        }
        inputs = {"kernel": source.origin, "release": source.release}
        stub = find_stub()
        if stub is not None:
            uki = make_uki(stub.read_bytes(), source.vmlinuz, initrd, command_line, source.release)
            (staged / "linux.efi").write_bytes(uki)
            files["uki"] = describe_file(staged / "linux.efi")
            inputs["stub"] = f"sha256 {describe_file(stub).sha256}"
        for file in files.values():
            if file.size > IMAGE_BYTES_MAX:
                raise ImageError(f"{file.path} has {file.size} bytes; at most {IMAGE_BYTES_MAX}")
        inputs["modules"] = " ".join(module for module, _ in modules)
        manifest = ImageManifest(
            name=name,
            kind="linux",
            version=duckctl.__version__,
            digest="",
            build_hash=build_hash_in(native_path("duckd")),
            fleet_public_id=public_id(fleet_public),
            command_line=command_line,
            inputs=inputs,
            files=files,
        )
        return install_image(fleet_dir, manifest, staged)


def _kernel(choice: KernelChoice, scratch: Path) -> KernelSource:
    if choice.package is not None:
        return from_package(choice.package, scratch)
    if choice.download:
        return from_package(download_package(scratch), scratch)
    return from_system(choice.release)


def _entries(
    fleet_public: str, modules: Sequence[tuple[str, bytes]], firmware: Path | None
) -> list[cpio.Entry]:
    entries = [
        # The kernel opens /dev/console for init before anything is mounted.
        cpio.character_device("dev/console", 5, 1),
        *(cpio.folder(path) for path in ("proc", "sys", "run", "tmp")),
        cpio.file("init", native_path("duck-init").read_bytes(), 0o755),
        cpio.file("sbin/duckd", native_path("duckd").read_bytes(), 0o755),
        cpio.file("etc/duck/fleet.pub", f"{PUBLIC_LABEL}{fleet_public}\n".encode()),
        cpio.file("etc/duck/modules", "".join(f"{name}\n" for name, _ in modules).encode()),
    ]
    entries += [cpio.file(f"lib/modules/{name}.ko", data) for name, data in modules]
    if firmware is not None:
        if not firmware.is_dir():
            raise UsageError(f"there is no firmware folder {firmware}")
        for path in sorted(firmware.rglob("*")):
            if path.is_file():
                place = path.relative_to(firmware).as_posix()
                entries.append(cpio.file(f"lib/firmware/{place}", path.read_bytes()))
    return entries
