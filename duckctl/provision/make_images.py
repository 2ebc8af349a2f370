"""Builds the images that a run needs, by duckctl.image."""

from __future__ import annotations

from collections.abc import Sequence

from duckctl.boot.plan import fleet_dir
from duckctl.image.manifest import list_images
from duckctl.inventory import Duck, Fleet
from duckctl.provision.decide import boots_from_network
from duckctl.provision.images import ImageStep, plan_images


def images_for(fleet: Fleet, ducks: Sequence[Duck]) -> list[ImageStep]:
    """What has to be built for these ducks; nothing when none of them boots from the network."""
    if not any(boots_from_network(duck) for duck in ducks):
        return []
    from duckctl.image.build import native_build_hash, public_id

    images = {image.name: image for image in list_images(fleet_dir(fleet))}
    return plan_images(ducks, images, native_build_hash(), public_id(fleet))


def make_images(fleet: Fleet, steps: Sequence[ImageStep]) -> None:
    """Builds what has to be built; an image that is there stays until the new one is whole."""
    if not any(step.builds for step in steps):
        return
    from duckctl.image.build import build_image

    for step in steps:
        if step.builds:
            build_image(fleet, step.name)
