"""Images are reproducible, say what is in them, and bad input is refused by name."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from image_kit import (
    deb,
    made_up_duckos,
    made_up_module,
    made_up_package,
    make_fleet_dir,
)

from duckctl.errors import UsageError
from duckctl.image import cpio
from duckctl.image import duckos as duckos_module
from duckctl.image.duckos import BLOCK_MAGIC, DuckosOptions, build_duckos, fill_config_block
from duckctl.image.elf_module import load_order, module_facts
from duckctl.image.fleet_public import public_id, read_public
from duckctl.image.kernel_source import from_package, from_system
from duckctl.image.linux import KernelChoice, LinuxOptions, build_linux
from duckctl.image.manifest import (
    MANIFEST,
    ImageError,
    find_image,
    image_dir,
    list_images,
    read_manifest,
    verify_files,
)
from duckctl.image.uki import add_sections, find_stub
from duckctl.native import native_path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The fleet's folder."""
    return make_fleet_dir(tmp_path / "fleet").parent


@pytest.fixture
def public(fleet: Path) -> str:
    return read_public(fleet / "fleet.pub")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "linux-image-9.9.9-1-amd64_1_amd64.deb"
    path.write_bytes(made_up_package())
    return path


def test_duckos_carries_key_and_options(fleet: Path, public: str, tmp_path: Path) -> None:
    """The config block has the lines; every other byte of the built file is as it was."""
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos())
    image = build_duckos(fleet, public, "lab", DuckosOptions(poll="hlt", console="serial"), source)
    built = (image_dir(fleet, "lab") / "duckos.img").read_bytes()
    block = built[8192 : 8192 + 4096]
    lines = block[8:].rstrip(b"\0").decode().splitlines()
    assert f"fleet_public={public}" in lines
    assert {"poll=hlt", "console=serial"} <= set(lines)
    assert built[:8200] + built[12288:] == source.read_bytes()[:8200] + source.read_bytes()[12288:]
    assert image.fleet_public_id == public_id(public)
    assert find_image(fleet, "lab") == image
    assert verify_files(fleet, image) == []


@pytest.mark.parametrize(
    ("limit", "size"), [("30G", 30 << 30), ("1.5GiB", 3 << 29), ("30g", 30 << 30), ("16M", 1 << 24)]
)
def test_a_memory_limit_is_written_in_bytes(limit: str, size: int) -> None:
    """The duck reads digits and K, M or G; what a person may write more is ours to read."""
    lines = DuckosOptions(memory_limit=limit).lines()
    assert lines == {"memory_limit": str(size)}
    assert DuckosOptions(memory_limit=lines["memory_limit"]).lines() == lines


def test_the_installed_duckos_becomes_an_image(fleet: Path, public: str) -> None:
    """The real file: its block is found, it fits the budget, it has this installation's build."""
    image = build_duckos(fleet, public, options=DuckosOptions(poll="spin"))
    data = (image_dir(fleet, "duckos") / "duckos.img").read_bytes()
    assert data.count(BLOCK_MAGIC) == 1
    assert f"fleet_public={public}\n".encode() in data
    assert image.build_hash.encode() in data
    assert data[:2] == b"MZ", "a UEFI application"
    assert data[0x202:0x206] == b"HdrS", "a bzImage"


def test_another_build_is_refused(fleet: Path, public: str, tmp_path: Path) -> None:
    """A duckos.img of other sources would greet the host with another build."""
    source = tmp_path / "duckos.img"
    mine = native_path("build-hash").read_bytes().strip()
    source.write_bytes(made_up_duckos().replace(mine, b"0" * 40))
    with pytest.raises(ImageError, match="was not built from the sources of this installation"):
        build_duckos(fleet, public, source=source)


@pytest.mark.parametrize("kind", ["duckos", "linux"])
def test_two_builds_have_one_digest(kind: str, tmp_path: Path, public: str, package: Path) -> None:
    """Two clean folders, same input: same digest, same bytes; another key: another digest."""
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos())
    found = []
    for name, key in (("a", public), ("b", public), ("c", public[:-2] + "00")):
        folder = tmp_path / name
        folder.mkdir()
        if kind == "duckos":
            image = build_duckos(folder, key, source=source)
        else:
            image = build_linux(folder, key, kernel=KernelChoice(package))
        files = {
            f.path: (image_dir(folder, kind) / f.path).read_bytes() for f in image.files.values()
        }
        found.append((image.digest, files))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


def test_the_name_is_no_part_of_the_digest(fleet: Path, public: str, tmp_path: Path) -> None:
    """The same image under two names is the same image."""
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos())
    one = build_duckos(fleet, public, "one", source=source)
    two = build_duckos(fleet, public, "two", source=source)
    assert one.digest == two.digest
    assert [image.name for image in list_images(fleet)] == ["one", "two"]


def test_t29_images_have_a_size_budget(
    fleet: Path, public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """duckos above 480 KiB and a Linux image above its budget are refused at build (T29)."""
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos(duckos_module.DUCKOS_BYTES_MAX + 1))
    with pytest.raises(ImageError, match="491521 bytes; a BIOS boot program may have 491520"):
        build_duckos(fleet, public, source=source)
    firmware = tmp_path / "firmware"
    firmware.mkdir()
    (firmware / "big.bin").write_bytes(bytes(1 << 20))
    package = tmp_path / "k.deb"
    package.write_bytes(made_up_package())
    monkeypatch.setattr("duckctl.image.linux.IMAGE_BYTES_MAX", 1 << 20)
    with pytest.raises(ImageError, match=r"initrd\.img has \d+ bytes; at most 1048576"):
        build_linux(
            fleet, public, kernel=KernelChoice(package), options=LinuxOptions(firmware=firmware)
        )
    assert list_images(fleet) == []
    assert [path.name for path in (fleet / "images").iterdir()] == []


@pytest.mark.parametrize(
    ("image", "values", "words"),
    [
        (b"no block at all" * 500, {}, "no config block"),
        (made_up_duckos()[:9000], {}, "no config block"),
        (made_up_duckos() + made_up_duckos(), {}, "more than one"),
        (made_up_duckos().replace(BLOCK_MAGIC + b"\0", BLOCK_MAGIC + b"a"), {}, "filled already"),
        (made_up_duckos(), {"a": "x\ny=1"}, "not printable"),
        (made_up_duckos(), {"a": ""}, "not printable"),
        (made_up_duckos(), {f"k{c}": "v" * 500 for c in "abcdefghi"}, "fit"),
    ],
)
def test_bad_config_blocks_are_refused(image: bytes, values: dict[str, str], words: str) -> None:
    """No block, two, a filled one, values that would make lines, too much text."""
    with pytest.raises(ImageError, match=words):
        fill_config_block(image, values)


def test_options_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    """Poll, console, memory limit, command line words."""
    with pytest.raises(UsageError, match="poll is one of spin, hlt, not 'block'"):
        DuckosOptions(poll="block")
    for wrong in ("lots", "-1G", "0", "30", "15M"):
        with pytest.raises(UsageError, match=f"--memory-limit '{wrong}' is "):
            DuckosOptions(memory_limit=wrong)
    with pytest.raises(UsageError, match="poll is one of"):
        LinuxOptions(poll="hlt").command_line()
    for words in (("a\nb",), ("x" * 1100,), ("é",)):
        with pytest.raises(UsageError, match="command line"):
            LinuxOptions(words=words).command_line()


def test_a_changed_manifest_or_file_is_seen(fleet: Path, public: str, tmp_path: Path) -> None:
    """One byte of a file, one field of the manifest, a path that leads out: each is named."""
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos())
    image = build_duckos(fleet, public, source=source)
    folder = image_dir(fleet, "duckos")
    data = bytearray((folder / "duckos.img").read_bytes())
    data[100] ^= 1
    (folder / "duckos.img").write_bytes(data)
    (problem,) = verify_files(fleet, image)
    assert problem.startswith("boot: ")
    (folder / "duckos.img").unlink()
    assert "is missing" in verify_files(fleet, image)[0]
    document = json.loads((folder / MANIFEST).read_text())
    for changes in ({"build_hash": "0" * 40}, {"digest": "0" * 64}):
        (folder / MANIFEST).write_text(json.dumps({**document, **changes}))
        with pytest.raises(ImageError, match="was changed after"):
            read_manifest(folder / MANIFEST)
    for text in ("{", "[]", json.dumps({**document, "kind": "windows"}),
                 json.dumps({**document, "schema_version": 2}),
                 json.dumps({**document, "files": {"boot": {"path": "../x", "size": 1,
                                                            "sha256": "0" * 64}}})):  # fmt: skip
        (folder / MANIFEST).write_text(text)
        with pytest.raises(ImageError, match=r"manifest\.json"):
            read_manifest(folder / MANIFEST)


def test_bad_names_and_missing_images(fleet: Path) -> None:
    """Names are no paths; a missing image says which there are and how to make it."""
    for name in ("../x", "", "A", ".hidden", "a/b", "x" * 40):
        with pytest.raises(UsageError, match="no image name"):
            find_image(fleet, name)
    with pytest.raises(
        ImageError, match=r"there is no image 'duckos' .*\(there are: none\)"
    ) as error:
        find_image(fleet, "duckos")
    assert error.value.hint == "make it: duckctl image build duckos"


def test_keys_of_the_wrong_form_are_refused(fleet: Path) -> None:
    """A private key, a short one, text: never in an image."""
    path = fleet / "fleet.pub"
    for text in ((fleet / "fleet.key").read_text(), "duck-p256-public:0411", "", "x" * 200):
        path.write_text(text)
        with pytest.raises(UsageError, match="does not hold"):
            read_public(path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        read_public(path)


def test_an_image_carries_no_secret(fleet: Path, public: str, package: Path) -> None:
    """The private key's digits are in no file of the image, as text or as bytes."""
    build_linux(fleet, public, kernel=KernelChoice(package))
    digits = (fleet / "fleet.key").read_text().strip().split(":")[1]
    for path in image_dir(fleet, "linux").iterdir():
        data = path.read_bytes()
        assert digits.encode() not in data
        assert bytes.fromhex(digits) not in data


def read_cpio(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Path -> mode and content of a newc archive, written from the kernel's description."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_bytes = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 109 + name_bytes].decode()
        start = (at + 110 + name_bytes + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[start : start + size])
        at = (start + size + 3) // 4 * 4


def test_the_initramfs_is_complete(fleet: Path, public: str, package: Path) -> None:
    """init, duckd, key, console, every card's module after what it needs; folders before files."""
    image = build_linux(fleet, public, kernel=KernelChoice(package))
    files = read_cpio((image_dir(fleet, "linux") / "initrd.img").read_bytes())
    assert list(files) == sorted(files)
    assert stat.S_ISCHR(files["dev/console"][0])
    assert files["init"][0] & 0o111
    assert files["sbin/duckd"][1][:4] == b"\x7fELF"
    assert files["etc/duck/fleet.pub"][1].decode() == f"duck-p256-public:{public}\n"
    order = files["etc/duck/modules"][1].decode().split()
    for first, later in (("virtio", "virtio_net"), ("ptp", "igc"), ("realtek", "r8169"),
                         ("libphy", "realtek"), ("virtio_ring", "virtio_pci")):  # fmt: skip
        assert order.index(first) < order.index(later)
    assert {f"lib/modules/{name}.ko" for name in order} <= set(files)
    for path in files:
        if "/" in path:
            assert path.rsplit("/", 1)[0] in files, f"{path} has no folder"
    assert image.inputs["release"] == "9.9.9-1-amd64"
    assert "pcie_aspm=off" in image.command_line, "T40: I226 and PCIe L1.2"


@pytest.mark.skipif(shutil.which("cpio") is None, reason="the program cpio is not installed")
def test_the_cpio_program_reads_our_archive(tmp_path: Path) -> None:
    """Another reader finds the same names."""
    data = cpio.archive([cpio.file("a/b/c", b"12345", 0o755), cpio.folder("z")])
    done = subprocess.run(["cpio", "-t"], input=data, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["a", "a/b", "a/b/c", "z"]


def test_files_of_an_archive_are_found_again() -> None:
    """Names and bytes of every length; what is no archive, or ends too soon, is refused."""
    files = {f"a/{size}{'n' * size}": bytes(range(size)) for size in range(9)}
    data = cpio.archive([cpio.file(*item) for item in files.items()])
    assert cpio.files_in(data) == files
    for damaged in (b"", b"x" + data, data[:-124]):
        with pytest.raises(ValueError, match="no cpio record at byte"):
            cpio.files_in(damaged)


def test_modules_that_are_missing_are_named(tmp_path: Path, public: str) -> None:
    """A wanted one, and one that another needs; built-in ones are no loss."""
    modules = {"a": made_up_module("b"), "b": made_up_module("c-d")}
    with pytest.raises(ImageError, match=r"no module c_d \(needed by b\)"):
        load_order(["a"], modules.get, [])
    assert [name for name, _ in load_order(["a"], modules.get, ["c_d"])] == ["b", "a"]
    package = tmp_path / "k.deb"
    package.write_bytes(made_up_package(without="igc"))
    with pytest.raises(ImageError, match="no module igc"):
        build_linux(tmp_path, public, kernel=KernelChoice(package))


def test_damaged_modules_and_packages_are_refused(tmp_path: Path) -> None:
    """Cut and random bytes: an error that names the file, never a crash."""
    whole = made_up_module("x")
    assert module_facts(whole, "depends") == ["x"]
    for cut in (0, 10, 63, 70, len(whole) - 1):
        with pytest.raises(ImageError):
            module_facts(whole[:cut], "depends")
    package = made_up_package()
    for number, data in enumerate((b"", b"!<arch>\n", package[:300], package[:-2000], b"x" * 999,
                                   deb({"usr/share/doc/x": b"nothing"}))):  # fmt: skip
        path = tmp_path / f"{number}.deb"
        path.write_bytes(data)
        with pytest.raises((ImageError, UsageError), match=path.name):
            from_package(path, tmp_path / f"out{number}")


def test_hostile_packages_write_nothing_outside(tmp_path: Path) -> None:
    """Names that climb out of the folder are left out."""
    path = tmp_path / "k.deb"
    path.write_bytes(deb({"boot/vmlinuz-1": b"k", "boot/vmlinuz-/../../../evil": b"x"}))
    from_package(path, tmp_path / "deep/er/scratch")
    assert not list(tmp_path.rglob("evil"))


def test_an_installed_kernel_is_found(tmp_path: Path) -> None:
    """The newest release that has both image and modules; a named one; none."""
    for release in ("6.1.0-9-amd64", "6.1.0-50-amd64", "7.0.0-1-amd64"):
        (tmp_path / "lib/modules" / release / "kernel").mkdir(parents=True)
    (tmp_path / "boot").mkdir()
    for release in ("6.1.0-9-amd64", "6.1.0-50-amd64"):
        (tmp_path / f"boot/vmlinuz-{release}").write_bytes(release.encode())
    assert from_system(None, tmp_path).release == "6.1.0-50-amd64"
    assert from_system("6.1.0-9-amd64", tmp_path).vmlinuz == b"6.1.0-9-amd64"
    with pytest.raises(UsageError, match=r"no installed kernel 7\.0\.0-1-amd64"):
        from_system("7.0.0-1-amd64", tmp_path)


@pytest.mark.skipif(find_stub() is None, reason="the package systemd-boot-efi is not installed")
def test_the_uki_holds_kernel_and_initrd(fleet: Path, public: str, package: Path) -> None:
    """objdump, which knows nothing of us, finds the sections with the right bytes."""
    image = build_linux(fleet, public, kernel=KernelChoice(package))
    folder = image_dir(fleet, "linux")
    uki = folder / image.files["uki"].path
    shown = subprocess.run(
        ["objdump", "-h", str(uki)], capture_output=True, text=True, check=True
    ).stdout
    sections = {name: (int(size, 16), int(offset, 16)) for name, size, offset in re.findall(
        r"^ +\d+ (\S+) +([0-9a-f]+)  [0-9a-f]+  [0-9a-f]+  ([0-9a-f]+)", shown, flags=re.M
    )}  # fmt: skip
    data = uki.read_bytes()
    for section, file in ((".linux", "vmlinuz"), (".initrd", "initrd.img")):
        size, offset = sections[section]
        assert data[offset : offset + size] == (folder / file).read_bytes()
    size, offset = sections[".cmdline"]
    assert data[offset : offset + size] == image.command_line.encode() + b"\0"
    with pytest.raises(ImageError, match="no room"):
        add_sections(uki.read_bytes(), {f".s{number}": b"x" for number in range(99)})
    for junk in (b"", b"MZ", bytes(4096)):
        with pytest.raises(ImageError, match="EFI stub"):
            add_sections(junk, {".x": b"x"})


@pytest.mark.slow
def test_the_commands(fleet: Path, tmp_path: Path, package: Path) -> None:
    """build, ls, show, verify: results on stdout, exit codes, refusal by name."""

    def duckctl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "duckctl",
            "image",
            *words,
            "--inventory",
            str(fleet / "shelf.yml"),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    built = duckctl("build", "linux", "--kernel-package", str(package), "--poll", "block", "--json")
    assert built.returncode == 0, built.stderr
    digest = json.loads(built.stdout)["digest"]
    listed = json.loads(duckctl("ls", "--json").stdout)
    assert [(i["name"], i["digest"]) for i in listed["images"]] == [("linux", digest)]
    assert "initrd.img" in duckctl("show", "linux").stdout
    signed = json.loads(duckctl("sign", "linux", "--json").stdout)
    assert (signed["digest"], signed["secure_boot"]) == (digest, False)
    assert Path(signed["signature"]).is_file()
    assert duckctl("verify", "linux").returncode == 0
    verified = json.loads(duckctl("verify", "linux", "--json").stdout)
    assert (verified["ok"], verified["problems"]) == (True, [])
    assert verified["good"] == ["the manifest is signed by the fleet's key"]
    (image_dir(fleet, "linux") / "vmlinuz").write_bytes(b"x")
    damaged = duckctl("verify", "linux")
    assert damaged.returncode == 1
    assert "vmlinuz has 1 bytes" in damaged.stderr
    told = duckctl("verify", "linux", "--json")
    assert told.returncode == 1
    assert "vmlinuz has 1 bytes" in json.loads(told.stdout)["problems"][0]
    missing = duckctl("build", "linux", "--kernel-package", str(tmp_path / "none.deb"))
    assert missing.returncode == 2
    assert "there is no kernel package" in missing.stderr


def test_a_failed_build_leaves_the_old_image(fleet: Path, public: str, tmp_path: Path) -> None:
    """The image in use stays whole until the new one is complete."""
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos())
    before = build_duckos(fleet, public, source=source)
    source.write_bytes(made_up_duckos() * 2)
    with pytest.raises(ImageError):
        build_duckos(fleet, public, source=source)
    assert find_image(fleet, "duckos") == before
    assert verify_files(fleet, before) == []
    assert replace(before, name="x").sealed().digest == before.digest
