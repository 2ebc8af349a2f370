"""duckos.img is what four kinds of loaders expect, small, and the same from every build."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from duckos_host import DUCKOS, ROOT

from duckctl.native import native_path

IMAGE_BYTES_MAX = 480 * 1024  # a BIOS network boot program must fit below 640 KB
CONFIG_AT, CONFIG_BYTES = 0x2000, 4096
LOADED_AT = 0x100000 - 0x1000  # where the file's first byte would be


@pytest.fixture(scope="module")
def image() -> bytes:
    return native_path("duckos.img").read_bytes()


def test_it_is_small_and_whole_pages(image: bytes) -> None:
    """At most 480 KB, in pages of 4 KiB."""
    assert len(image) <= IMAGE_BYTES_MAX
    assert len(image) % 4096 == 0


def test_it_is_a_network_boot_program(image: bytes) -> None:
    """The first bytes are harmless instructions and a jump to code in the first 512 bytes."""
    assert image[:3] == b"MZ\xeb"
    assert image[3 + 1 + image[3]] == 0xFA  # cli


def sections(image: bytes) -> dict[str, tuple[int, int, int, int, int]]:
    at: int = struct.unpack_from("<I", image, 0x3C)[0]
    count, optional = struct.unpack_from("<H12xH", image, at + 6)
    found = {}
    for i in range(count):
        name, *rest = struct.unpack_from("<8sIIII12xI", image, at + 24 + optional + 40 * i)
        found[name.rstrip(b"\0").decode()] = tuple(rest)
    return found


def test_it_is_a_uefi_application(image: bytes) -> None:
    """PE32+ for x86-64, subsystem 10, sections that follow each other, code not writable."""
    at: int = struct.unpack_from("<I", image, 0x3C)[0]
    assert image[at : at + 4] == b"PE\0\0"
    machine, count = struct.unpack_from("<HH", image, at + 4)
    assert (machine, count) == (0x8664, 2)
    optional = at + 24
    magic, entry = struct.unpack_from("<H14xI", image, optional)
    assert magic == 0x20B
    alignment, file_alignment = struct.unpack_from("<II", image, optional + 32)
    assert (alignment, file_alignment) == (0x1000, 0x200)
    size_of_image, size_of_headers = struct.unpack_from("<II", image, optional + 56)
    assert struct.unpack_from("<H", image, optional + 68) == (10,)
    text, data = sections(image)[".text"], sections(image)[".data"]
    assert (text[1], text[3], text[0]) == (0x1000, 0x1000, text[2])
    assert data[1] == data[3] == text[1] + text[2]
    assert data[3] + data[2] == len(image)
    assert size_of_image == data[1] + data[0]
    assert size_of_headers == 0x1000
    assert text[1] <= entry < text[1] + text[0]
    write, execute = 1 << 31, 1 << 29
    assert (text[4] & write, text[4] & execute) == (0, execute)
    assert (data[4] & write, data[4] & execute) == (write, 0)


def test_it_is_a_linux_image(image: bytes) -> None:
    """A bzImage of boot protocol 2.12 whose protected-mode part is everything from 0x1000 on."""
    setup_sectors, system, flag = struct.unpack_from("<BxxI6xH", image, 0x1F1)
    assert (setup_sectors + 1) * 512 == 0x1000
    assert flag == 0xAA55
    assert image[0x202:0x206] == b"HdrS"
    version: int = struct.unpack_from("<H", image, 0x206)[0]
    assert version == 0x020C
    assert image[0x211] & 1 == 1  # LOADED_HIGH
    assert struct.unpack_from("<I", image, 0x214) == (0x100000,)
    assert system * 16 == len(image) - 0x1000
    assert image[0x200] == 0xEB  # jump over the header


def test_it_is_a_multiboot_kernel(image: bytes) -> None:
    """The multiboot header lies in the first 8 KiB and names the addresses that head.S expects."""
    at = image.index(struct.pack("<I", 0x1BADB002))
    assert at % 4 == 0
    assert at < 8192
    magic, flags, checksum, header, load, load_end, end, entry = struct.unpack_from(
        "<8I", image, at
    )
    assert (magic + flags + checksum) & 0xFFFFFFFF == 0
    assert flags == 0x10002
    assert header == at + LOADED_AT
    assert load == entry == 0x100000
    assert load_end == len(image) + LOADED_AT
    assert load_end < end < load_end + (8 << 20)


def test_the_config_block_is_empty_and_alone(image: bytes) -> None:
    """DUCKCFG1 stands at 0x2000 and nowhere else; the rest of its 4096 bytes is zero."""
    assert [match.start() for match in re.finditer(b"DUCKCFG1", image)] == [CONFIG_AT]
    assert image[CONFIG_AT + 8 : CONFIG_AT + CONFIG_BYTES] == bytes(CONFIG_BYTES - 8)


def test_nothing_of_the_building_machine_is_inside(image: bytes) -> None:
    """No path of the source or build folder, no compiler's name."""
    for word in (str(ROOT), str(Path.home()), "GCC:", "/tmp/"):
        assert word.encode() not in image


def build(source: Path, kind: str) -> Path:
    folder = source / "output"
    command: list[str | Path] = [
        "cmake",
        "-S",
        source,
        "-B",
        folder,
        "-G",
        "Ninja",
        f"-DCMAKE_BUILD_TYPE={kind}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["ninja", "-C", folder, "duckos_image"], check=True, capture_output=True)
    return folder / "images/duckos"


def copy_of_sources(target: Path) -> Path:
    skipped = shutil.ignore_patterns("_native", "__pycache__", "build", "output")
    for name in ("kernels", "images", "host_runtime/transport", "host_runtime/cuda"):
        shutil.copytree(ROOT / name, target / name, ignore=skipped)
    shutil.copy(ROOT / "CMakeLists.txt", target)
    return target


@pytest.fixture(scope="module")
def two_builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("builds")
    first = copy_of_sources(folder / "a")
    second = copy_of_sources(folder / "a longer path/b")
    return [build(first, "Release"), build(second, "Debug")]


@pytest.mark.slow
def test_two_builds_give_the_same_bytes(two_builds: list[Path]) -> None:
    """Other folders, another build type: the same digest."""
    digests = {
        hashlib.sha256((folder / "duckos.img").read_bytes()).hexdigest() for folder in two_builds
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_code_before_paging_needs_no_final_address(two_builds: list[Path]) -> None:
    """What runs at the physical address has only relative relocations."""
    objects = two_builds[0] / "CMakeFiles/duckos_objects.dir"
    early = ["boot/early", "boot/efi", "boot/handover", "boot/quiet", "console/serial"]
    early += ["memory/map", "memory/memory", "memory/paging", "memory/bytes"]
    for name in early:
        command: list[str | Path] = ["objdump", "-r", objects / f"{name}.c.o"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        kinds = set(re.findall(r"R_X86_64_\w+", text))
        assert kinds <= {"R_X86_64_PC32", "R_X86_64_PLT32"}, f"{name}: {kinds}"


@pytest.mark.slow
def test_our_code_uses_general_registers_only(two_builds: list[Path]) -> None:
    """Outside of BearSSL and the wiping before ring 3 no vector register appears, and nowhere one
    of AVX or AVX-512."""
    command: list[str | Path] = [
        "objdump",
        "-d",
        "--no-show-raw-insn",
        two_builds[0] / "duckos.elf",
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with_vectors = set()
    function = ""
    for line in text.splitlines():
        if label := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = label[1]
        elif re.search(r"%[xyz]mm\d", line):
            with_vectors.add(function)
            assert "%zmm" not in line
            assert "%ymm" not in line
    others = {name for name in with_vectors if not name.startswith("br_")}
    assert others - local_names() <= {"clear_sse"}


def local_names() -> set[str]:
    """Static functions of libbearssl.a: they have no prefix."""
    library = Path("/usr/lib/x86_64-linux-gnu/libbearssl.a")
    text = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r" t (\S+)$", text, flags=re.M))


def test_boot_is_one_list() -> None:
    """duckos_main is a list of calls: no loop, no branch, a comment for each step."""
    body = (DUCKOS / "main.c").read_text().split("void duckos_main(void) {")[1].split("\n}")[0]
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    assert len(lines) >= 12
    assert [line for line in lines if not re.match(r"\w+\(.*\); */\*.*\*/|.*;|/\*", line)] == []
    assert not re.search(r"\b(if|while|switch|goto)\b", body)
