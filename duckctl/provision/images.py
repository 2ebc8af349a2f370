"""Which images a run needs, and whether the ones that are there are the right ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duckctl.boot.plan import boots_from_network
from duckctl.image.manifest import ImageManifest
from duckctl.inventory import Duck


@dataclass(frozen=True)
class ImageStep:
    """One image: ``why`` it is built; empty when the one that is there will do."""

    name: str
    why: str

    @property
    def builds(self) -> bool:
        return bool(self.why)


def plan_images(
    ducks: Sequence[Duck],
    images: Mapping[str, ImageManifest],
    build: str,
    fleet_public_id: str,
) -> list[ImageStep]:
    """One step per image that these ducks boot; none for ducks that boot by other means."""
    wanted = sorted({duck.image for duck in ducks if boots_from_network(duck)})
    return [ImageStep(name, _why(images.get(name), build, fleet_public_id)) for name in wanted]


def _why(image: ImageManifest | None, build: str, fleet_public_id: str) -> str:
    if image is None:
        return "there is none"
    if image.build_hash != build:
        return f"it is of build {image.build_hash[:12]}, this host is of {build[:12]}"
    if image.fleet_public_id != fleet_public_id:
        return "it was made for another fleet key"
    return ""


def describe(step: ImageStep) -> str:
    return f"image {step.name}: {'build it, ' + step.why if step.builds else 'is up to date'}"


Build = Callable[[str], ImageManifest]


def build_images(steps: Sequence[ImageStep], build: Build) -> list[ImageManifest]:
    """Builds what has to be built; gives what was built."""
    return [build(step.name) for step in steps if step.builds]
