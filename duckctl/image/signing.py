"""Signatures of images: the manifest by the fleet's key, the UEFI file for Secure Boot.

Secure Boot is done by sbsign, and sbverify judges the result before it is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duckctl.errors import UsageError
from duckctl.image.fleet_public import public_id, read_public
from duckctl.image.manifest import (
    ImageError,
    ImageFile,
    ImageManifest,
    describe_file,
    image_dir,
    install_image,
)
from duckctl.image.staging import staged_folder
from duckctl.keys import public_path, sign_bytes, verify_bytes

SIGNATURE = "manifest.sig"
CONTEXT = "duckctl image manifest v1"  # no other use of the key signs texts that begin so
SIGNING_S = 30.0
UEFI_ROLES = ("uki", "kernel", "boot")  # the first that an image has is what firmware loads


@dataclass(frozen=True)
class SignatureReport:
    """What was found: sentences for people."""

    good: tuple[str, ...]
    problems: tuple[str, ...]


def sign_manifest(fleet_dir: Path, image: ImageManifest, key_file: Path) -> Path:
    """Signs the image's digest with the fleet's private key; gives the signature's file."""
    public = read_public(public_path(key_file))
    if public_id(public) != image.fleet_public_id:
        raise ImageError(
            f"image {image.name} was built for fleet key {image.fleet_public_id}, the fleet's is "
            f"{public_id(public)}",
            f"build it again: duckctl image build {image.kind}",
        )
    signature = sign_bytes(key_file, _signed_text(image))
    place = image_dir(fleet_dir, image.name) / SIGNATURE
    temporary = place.with_name(f".{SIGNATURE}.new")
    temporary.write_text(signature.hex() + "\n", encoding="ascii")
    temporary.replace(place)
    return place


def verify_signatures(fleet_dir: Path, image: ImageManifest, key_file: Path) -> SignatureReport:
    """Checks the manifest's signature and, where there is one, that for Secure Boot."""
    good, problems = [], []
    public = read_public(public_path(key_file))
    if public_id(public) != image.fleet_public_id:
        problems.append(f"built for fleet key {image.fleet_public_id}, not {public_id(public)}")
    path = image_dir(fleet_dir, image.name) / SIGNATURE
    if not path.is_file():
        good.append("the manifest is not signed (duckctl image sign)")
    elif _manifest_is_signed(image, public_path(key_file), path):
        good.append("the manifest is signed by the fleet's key")
    else:
        problems.append(f"{path} is no signature of this manifest by the fleet's key")
    certificates = secure_boot_signatures(_uefi_path(fleet_dir, image))
    if certificates:
        good.append(f"{certificates} Secure Boot signature in {_uefi_file(image).path}")
    return SignatureReport(tuple(good), tuple(problems))


def sign_for_secure_boot(
    fleet_dir: Path, image: ImageManifest, key: Path, certificate: Path
) -> ImageManifest:
    """Signs the file that firmware loads, and lets sbverify judge it before it is installed."""
    for program in ("sbsign", "sbverify"):
        if shutil.which(program) is None:
            raise ImageError(f"{program} is not installed", "sudo apt-get install sbsigntool")
    for path in (key, certificate):
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
    folder = image_dir(fleet_dir, image.name)
    wanted = _uefi_file(image)
    role = next(role for role in UEFI_ROLES if role in image.files)
    with staged_folder(fleet_dir, image.name) as staged:
        for file in image.files.values():
            shutil.copy2(folder / file.path, staged / file.path)
        signed = staged / wanted.path
        command = ["sbsign", "--key", str(key), "--cert", str(certificate), "--output", str(signed)]
        _run([*command, str(folder / wanted.path)])
        _run(["sbverify", "--cert", str(certificate), str(signed)])
        files = {**image.files, role: describe_file(signed)}
        inputs = {**image.inputs, "secure_boot_certificate": describe_file(certificate).sha256}
        return install_image(fleet_dir, replace(image, files=files, inputs=inputs), staged)


def secure_boot_signatures(path: Path) -> int:
    """How many signatures a UEFI file carries; 0 where sbverify is not installed."""
    if shutil.which("sbverify") is None or not path.is_file():
        return 0
    done = subprocess.run(
        ["sbverify", "--list", str(path)], capture_output=True, text=True, check=False
    )
    return len(re.findall(r"^signature \d+", done.stdout, flags=re.M))


def _uefi_file(image: ImageManifest) -> ImageFile:
    return next(image.files[role] for role in UEFI_ROLES if role in image.files)


def _uefi_path(fleet_dir: Path, image: ImageManifest) -> Path:
    return image_dir(fleet_dir, image.name) / _uefi_file(image).path


def _signed_text(image: ImageManifest) -> bytes:
    return f"{CONTEXT}\n{image.kind}\n{image.digest}\n".encode("ascii")


def _manifest_is_signed(image: ImageManifest, public_file: Path, path: Path) -> bool:
    try:
        signature = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (ValueError, OSError):
        return False
    return verify_bytes(public_file, _signed_text(image), signature)


def _run(command: Sequence[str]) -> None:
    """Runs a signing program; its first line of complaint becomes ours."""
    if shutil.which(command[0]) is None:
        raise ImageError(f"{command[0]} is not installed", f"sudo apt-get install {command[0]}")
    done = subprocess.run(command, capture_output=True, check=False, timeout=SIGNING_S)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise ImageError(f"{command[0]} failed: {said[0] if said else 'no message'}")
