"""An image that a run builds anew is as it was: firmware, signatures, options; or it is refused."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from lifecycle_kit import BUILD, shelf

from duckctl.cli import run as duckctl
from duckctl.errors import UsageError
from duckctl.image import cpio, linux
from duckctl.image.fleet_public import public_id, public_path, read_public
from duckctl.image.linux import COMMAND_LINE, KernelChoice, LinuxOptions
from duckctl.image.manifest import (
    ImageFile,
    ImageManifest,
    describe_file,
    find_image,
    image_dir,
    images_dir,
    install_image,
)
from duckctl.image.signing import sign_manifest, verify_signatures
from duckctl.inventory import Fleet
from duckctl.keys import make_key
from duckctl.provision.images import ImageStep
from duckctl.provision.make_images import images_for, make_images

STALE = [ImageStep("linux", "it is of another build")]
FIRMWARE = {"rtl_nic/rtl8168h-2.fw": b"firmware", "regulatory.db": b"db!"}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = shelf(tmp_path)
    make_key(made.key_file)
    return made


def install(fleet: Fleet, firmware: dict[str, bytes], **inputs: str) -> ImageManifest:
    """An image of another build, with what this run needs of it."""
    staged = images_dir(fleet.path.parent) / ".linux.new"
    staged.mkdir(parents=True)
    files = [cpio.file(f"lib/firmware/{name}", data) for name, data in firmware.items()]
    (staged / "initrd.img").write_bytes(cpio.archive([cpio.file("init", b"#!"), *files]))
    key = public_id(read_public(public_path(fleet.key_file)))
    line = f"{COMMAND_LINE} duck.poll=sleep quick"
    (staged / "vmlinuz").write_bytes(b"kernel")
    image = ImageManifest("linux", "linux", "1", "", BUILD, key, line, inputs, described(staged))
    return install_image(fleet.path.parent, image, staged)


def described(folder: Path) -> dict[str, ImageFile]:
    names = {"kernel": "vmlinuz", "initrd": "initrd.img"}
    return {role: describe_file(folder / name) for role, name in names.items()}


class Builder:
    """Stands for ``build_linux``: keeps what it was given, and installs an image."""

    def __init__(self) -> None:
        self.options = LinuxOptions()
        self.firmware: dict[str, bytes] = {}

    def __call__(
        self, folder: Path, public: str, kernel: KernelChoice, options: LinuxOptions
    ) -> ImageManifest:
        self.options, root = options, options.firmware
        if root is not None:
            paths = [path for path in root.rglob("*") if path.is_file()]
            self.firmware = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        staged = images_dir(folder) / ".linux.new"
        staged.mkdir()
        for name in ("vmlinuz", "initrd.img"):
            (staged / name).write_bytes(b"new")
        image = replace(find_image(folder, "linux"), files=described(staged))
        return install_image(folder, image, staged)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(linux, "build_linux", made)
    return made


@pytest.mark.parametrize("firmware", [FIRMWARE, {}])
def test_options_and_firmware_are_taken_over(
    fleet: Fleet, builder: Builder, firmware: dict[str, bytes]
) -> None:
    """From the image that is replaced, of any version; nobody has to keep the firmware's folder."""
    install(fleet, firmware)
    make_images(fleet, STALE)
    assert builder.firmware == firmware
    assert (builder.options.firmware is None) == (not firmware)
    assert (builder.options.poll, builder.options.words) == ("sleep", ("quick",))


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_signed_manifest_is_signed_again(fleet: Fleet, builder: Builder, is_signed: bool) -> None:
    """With the fleet's key, which is here; one that was not signed stays so."""
    folder = fleet.path.parent
    image = install(fleet, {})
    if is_signed:
        sign_manifest(folder, image, fleet.key_file)
    make_images(fleet, STALE)
    report = verify_signatures(folder, find_image(folder, "linux"), fleet.key_file)
    assert report.problems == ()
    assert ("the manifest is signed by the fleet's key" in report.good) == is_signed


def test_a_damaged_image_tells_no_firmware(fleet: Fleet, builder: Builder) -> None:
    """It is not left out in silence: a person has to say whether there was any."""
    install(fleet, FIRMWARE)
    path = image_dir(fleet.path.parent, "linux") / "initrd.img"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UsageError, match="the firmware in it cannot be taken over"):
        make_images(fleet, STALE)


def test_a_secure_boot_image_is_not_replaced_by_an_unsigned_one(
    fleet: Fleet, builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is not here: the run ends before it does anything, and so does its preview; the words
    say what to do, in commands that exist."""
    image = install(fleet, {}, secure_boot_certificate="ab" * 32)
    for more in ([], ["--dry-run"]):
        assert duckctl(["provision", "--inventory", str(fleet.path), *more]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "image linux has to be built (it is of build abababababab" in said
        assert "is signed for Secure Boot" in said
        assert "--skip-images" in said
    assert find_image(fleet.path.parent, "linux") == image
    with pytest.raises(UsageError) as caught:
        images_for(fleet, fleet.ducks)
    build, sign = caught.value.hint.partition(": ")[2].partition(";")[0].split(" && ")
    assert shlex.split(build)[:4] == ["duckctl", "image", "build", "linux"]
    assert duckctl(shlex.split(sign)[1:]) == 2  # it takes these options, and misses the key's file
    assert "there is no file KEY" in capsys.readouterr().err
