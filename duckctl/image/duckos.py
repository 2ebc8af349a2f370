"""``image build duckos``: the built duckos.img with the fleet's config block filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckctl
from duckctl.errors import UsageError
from duckctl.image.fleet_public import public_id
from duckctl.image.manifest import ImageError, ImageManifest, describe_file, install_image
from duckctl.image.staging import build_hash_in, staged_folder
from duckctl.native import native_path
from duckctl.shards.parse import parse_bytes

# images/duckos/boot/config_block.h
BLOCK_MAGIC = b"DUCKCFG1"
BLOCK_BYTES = 4096
# A BIOS boot program must fit below 640 KiB beside the firmware's own needs (600,000 bytes booted,
# 1 MiB did not); the goal leaves room for ROMs that keep more for themselves.
DUCKOS_BYTES_MAX = 480 * 1024
MEMORY_LIMIT_BYTES_MIN = 16 << 20  # kernel and session need a part of it, weights the rest
VALUE = re.compile(r"[ -~]{1,512}")
FILE = "duckos.img"


@dataclass(frozen=True)
class DuckosOptions:
    """What the config block says beside key and version. Empty: the image's own default."""

    poll: str = ""  # spin | hlt
    console: str = ""  # serial | screen | both | off
    memory_limit: str = ""  # of sessions, e.g. 30G
    host: str = ""
    watchdog: str = ""  # on | off

    def __post_init__(self) -> None:
        choices = {
            "poll": ("", "spin", "hlt"),
            "console": ("", "serial", "screen", "both", "off"),
            "watchdog": ("", "on", "off"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                words = ", ".join(word for word in allowed if word)
                raise UsageError(f"{name} is one of {words}, not '{getattr(self, name)}'")
        if self.memory_limit and self._memory_bytes() < MEMORY_LIMIT_BYTES_MIN:
            raise UsageError(
                f"--memory-limit '{self.memory_limit}' is too small for a session",
                f"at least {MEMORY_LIMIT_BYTES_MIN >> 20}M; write e.g. 30G",
            )

    def _memory_bytes(self) -> int:
        return parse_bytes(self.memory_limit, "--memory-limit")

    def lines(self) -> dict[str, str]:
        values = {
            "host": self.host,
            "poll": self.poll,
            "console": self.console,
            # In bytes: images/duckos/boot/options.c reads no '1.5G' or '30GiB'.
            "memory_limit": str(self._memory_bytes()) if self.memory_limit else "",
            "watchdog": self.watchdog,
        }
        return {key: value for key, value in values.items() if value}


def fill_config_block(image: bytes, values: Mapping[str, str]) -> bytes:
    """The image with ``key=value`` lines in its config block, which must be empty.

    Raises ImageError when there is no block, more than one, one that is filled, or no room.
    """
    at = image.find(BLOCK_MAGIC)
    if at < 0 or at + BLOCK_BYTES > len(image):
        raise ImageError("the file has no config block (DUCKCFG1): it is no duckos image")
    if image.find(BLOCK_MAGIC, at + 1) >= 0:
        raise ImageError("the file has more than one config block (DUCKCFG1)")
    start, end = at + len(BLOCK_MAGIC), at + BLOCK_BYTES
    if image[start:end].strip(b"\0"):
        raise ImageError("the config block is filled already", "start from the built duckos.img")
    for key, value in values.items():
        if not re.fullmatch(r"[a-z_]{1,32}", key) or not VALUE.fullmatch(value):
            raise ImageError(f"config block: '{key}={value}' is not printable ASCII on one line")
    text = "".join(f"{key}={value}\n" for key, value in values.items()).encode("ascii")
    if len(text) > end - start - 1:
        raise ImageError(f"config block: {len(text)} bytes of settings; {end - start - 1} fit")
    return image[:start] + text.ljust(end - start, b"\0") + image[end:]


def build_duckos(
    fleet_dir: Path,
    fleet_public: str,
    name: str = "duckos",
    options: DuckosOptions | None = None,
    source: Path | None = None,
) -> ImageManifest:
    """Builds and installs the image; ``fleet_public``: 130 hex digits (``read_public``).

    ``source``: another duckos.img than the installed one.
    """
    built = source or native_path(FILE)
    build_hash = build_hash_in(built)
    values = {
        "fleet_public": fleet_public,
        "version": duckctl.__version__,
        "build": build_hash,
        **(options or DuckosOptions()).lines(),
    }
    image = fill_config_block(built.read_bytes(), values)
    if len(image) > DUCKOS_BYTES_MAX:
        raise ImageError(
            f"{built} has {len(image)} bytes; a BIOS boot program may have {DUCKOS_BYTES_MAX}"
        )
    with staged_folder(fleet_dir, name) as staged:
        (staged / FILE).write_bytes(image)
        manifest = ImageManifest(
            name=name,
            kind="duckos",
            version=duckctl.__version__,
            digest="",
            build_hash=build_hash,
            fleet_public_id=public_id(fleet_public),
            command_line="",
            inputs={"duckos.img": describe_file(built).sha256, **_without_key(values)},
            files={"boot": describe_file(staged / FILE)},
        )
        return install_image(fleet_dir, manifest, staged)


def _without_key(values: Mapping[str, str]) -> dict[str, str]:
    return {f"config.{k}": v for k, v in values.items() if k not in ("fleet_public", "build")}
