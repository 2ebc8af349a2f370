"""Builds the images that a run needs, by duckctl.image, as they were built before.

An image that this run could not build as it was (its Secure Boot key is not here) is refused before
anything is restarted.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from duckctl.boot.plan import boots_from_network, fleet_dir
from duckctl.errors import UsageError
from duckctl.image import cpio
from duckctl.image.fleet_public import public_id, public_path, read_public
from duckctl.image.manifest import ImageManifest, describe_file, image_dir, list_images
from duckctl.inventory import Duck, Fleet
from duckctl.native import native_path
from duckctl.provision.images import ImageStep, plan_images

FIRMWARE = "lib/firmware/"  # in the initramfs


def images_for(fleet: Fleet, ducks: Sequence[Duck]) -> list[ImageStep]:
    """What has to be built for these ducks; nothing when none of them boots from the network.

    Raises UsageError when an image has to be built that is signed for Secure Boot.
    """
    if not any(boots_from_network(duck) for duck in ducks):
        return []
    build = native_path("build-hash").read_text(encoding="ascii").strip()
    key = public_id(read_public(public_path(fleet.key_file)))
    before = _images(fleet)
    steps = plan_images(ducks, before, build, key)
    for step in steps:
        if step.builds and step.name in before:
            _check_unsigned(fleet, step, before[step.name])
    return steps


def make_images(fleet: Fleet, steps: Sequence[ImageStep]) -> None:
    """Builds what has to be built; an image that is there stays until the new one is whole. One
    whose manifest was signed with the fleet's key is signed again."""
    from duckctl.image.signing import SIGNATURE, sign_manifest

    needed = [step.name for step in steps if step.builds]
    if not needed:
        return
    public, before = read_public(public_path(fleet.key_file)), _images(fleet)
    for name in needed:
        make = _make_duckos if name == "duckos" else _make_linux
        was_signed = (image_dir(fleet_dir(fleet), name) / SIGNATURE).is_file()
        image = make(fleet, public, before.get(name))
        if was_signed:
            sign_manifest(fleet_dir(fleet), image, fleet.key_file)


def _images(fleet: Fleet) -> dict[str, ImageManifest]:
    return {image.name: image for image in list_images(fleet_dir(fleet))}


def _check_unsigned(fleet: Fleet, step: ImageStep, before: ImageManifest) -> None:
    if "secure_boot_certificate" not in before.inputs:
        return
    words = f"{step.name} --inventory {shlex.quote(str(fleet.path))}"
    raise UsageError(
        f"image {step.name} has to be built ({step.why}) and is signed for Secure Boot: what this "
        "run built would be unsigned, and the ducks would refuse it",
        f"build and sign it by hand, with the options that it had: duckctl image build {words} && "
        f"duckctl image sign {words} --key KEY --cert CERT; or take it as it is: --skip-images",
    )


def _make_duckos(fleet: Fleet, public: str, before: ImageManifest | None) -> ImageManifest:
    from duckctl.image.duckos import DuckosOptions, build_duckos

    old = before.inputs if before else {}
    options = DuckosOptions(
        poll=old.get("config.poll", ""),
        console=old.get("config.console", ""),
        memory_limit=old.get("config.memory_limit", ""),
        host=old.get("config.host", ""),
        watchdog=old.get("config.watchdog", ""),
    )
    return build_duckos(fleet_dir(fleet), public, options=options)


def _make_linux(fleet: Fleet, public: str, before: ImageManifest | None) -> ImageManifest:
    from duckctl.image.linux import COMMAND_LINE, KernelChoice, LinuxOptions, build_linux

    words = before.command_line.removeprefix(COMMAND_LINE).split() if before else []
    poll = next((w.removeprefix("duck.poll=") for w in words if w.startswith("duck.poll=")), "spin")
    more = tuple(word for word in words if not word.startswith("duck.poll="))
    release = before.inputs.get("release") if before else None
    with tempfile.TemporaryDirectory() as scratch:
        firmware = _firmware(fleet, before, Path(scratch)) if before else None
        options = LinuxOptions(poll=poll, words=more, firmware=firmware)
        kernel = KernelChoice(release=release)
        try:
            return build_linux(fleet_dir(fleet), public, kernel=kernel, options=options)
        except UsageError as error:
            raise UsageError(
                f"image linux cannot be built from this machine's kernel: {error.message}",
                "build it once by hand: duckctl image build linux --download --inventory "
                f"{fleet.path}",
            ) from error


def _firmware(fleet: Fleet, before: ImageManifest, into: Path) -> Path | None:
    """The files that ``--firmware`` had added, out of the old image; None: there were none.

    Raises UsageError when that image is damaged: nobody knows then.
    """
    wanted = before.files["initrd"]
    path = image_dir(fleet_dir(fleet), before.name) / wanted.path
    if not path.is_file() or describe_file(path) != wanted:
        raise UsageError(
            f"{path} is damaged or missing, so the firmware in it cannot be taken over",
            "build the image once by hand: duckctl image build linux --inventory "
            f"{shlex.quote(str(fleet.path))} (with --firmware FOLDER if it had any)",
        )
    found = False
    for name, data in cpio.files_in(path.read_bytes()).items():
        if name.startswith(FIRMWARE):
            place = into / name.removeprefix(FIRMWARE)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            found = True
    return into if found else None
