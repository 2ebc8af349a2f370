"""Builds the images that a run needs, by duckctl.image, as they were built before."""

from __future__ import annotations

from collections.abc import Sequence

from duckctl.boot.plan import boots_from_network, fleet_dir
from duckctl.errors import UsageError
from duckctl.image.fleet_public import public_id, public_path, read_public
from duckctl.image.manifest import ImageManifest, list_images
from duckctl.inventory import Duck, Fleet
from duckctl.native import native_path
from duckctl.provision.images import ImageStep, plan_images


def images_for(fleet: Fleet, ducks: Sequence[Duck]) -> list[ImageStep]:
    """What has to be built for these ducks; nothing when none of them boots from the network."""
    if not any(boots_from_network(duck) for duck in ducks):
        return []
    build = native_path("build-hash").read_text(encoding="ascii").strip()
    key = public_id(read_public(public_path(fleet.key_file)))
    return plan_images(ducks, _images(fleet), build, key)


def make_images(fleet: Fleet, steps: Sequence[ImageStep]) -> None:
    """Builds what has to be built; an image that is there stays until the new one is whole."""
    needed = [step.name for step in steps if step.builds]
    if not needed:
        return
    public, before = read_public(public_path(fleet.key_file)), _images(fleet)
    for name in needed:
        if name == "duckos":
            _make_duckos(fleet, public, before.get(name))
        else:
            _make_linux(fleet, public, before.get(name))


def _images(fleet: Fleet) -> dict[str, ImageManifest]:
    return {image.name: image for image in list_images(fleet_dir(fleet))}


def _make_duckos(fleet: Fleet, public: str, before: ImageManifest | None) -> None:
    from duckctl.image.duckos import DuckosOptions, build_duckos

    old = before.inputs if before else {}
    options = DuckosOptions(
        poll=old.get("config.poll", ""),
        console=old.get("config.console", ""),
        memory_limit=old.get("config.memory_limit", ""),
        host=old.get("config.host", ""),
        watchdog=old.get("config.watchdog", ""),
    )
    build_duckos(fleet_dir(fleet), public, options=options)


def _make_linux(fleet: Fleet, public: str, before: ImageManifest | None) -> None:
    from duckctl.image.linux import COMMAND_LINE, KernelChoice, LinuxOptions, build_linux

    words = before.command_line.removeprefix(COMMAND_LINE).split() if before else []
    poll = next((w.removeprefix("duck.poll=") for w in words if w.startswith("duck.poll=")), "spin")
    more = tuple(word for word in words if not word.startswith("duck.poll="))
    release = before.inputs.get("release") if before else None
    options = LinuxOptions(poll=poll, words=more)
    try:
        build_linux(fleet_dir(fleet), public, kernel=KernelChoice(release=release), options=options)
    except UsageError as error:
        raise UsageError(
            f"image linux cannot be built from this machine's kernel: {error.message}",
            f"build it once by hand: duckctl image build linux --download --inventory {fleet.path}",
        ) from error
