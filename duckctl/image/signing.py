"""Signatures of images: the manifest by the fleet's key, the UEFI file for Secure Boot.

ECDSA and Secure Boot are done by openssl and sbsign. The private key goes to openssl through a
pipe, never into a file or a command line.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duckctl.errors import UsageError
from duckctl.image.fleet_public import public_id, public_path, read_public
from duckctl.image.manifest import (
    ImageError,
    ImageFile,
    ImageManifest,
    describe_file,
    image_dir,
    install_image,
)
from duckctl.image.staging import staged_folder

SIGNATURE = "manifest.sig"
CONTEXT = "duckctl image manifest v1"  # no other use of the key signs texts that begin so
PRIVATE_PREFIX = "duck-p256-private:"
OPENSSL_S = 30.0
KEY_FILE_BYTES_MAX = 4096
# RFC 5915 and RFC 5480: the fixed bytes around a P-256 scalar and point.
PRIVATE_DER = (bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107"))
PUBLIC_DER = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")
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
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_bytes(_signed_text(image))
        done = _run(
            ["openssl", "dgst", "-sha256", "-keyform", "DER", "-sign", "/dev/stdin", str(text)],
            _private_der(key_file),
        )
    place = image_dir(fleet_dir, image.name) / SIGNATURE
    temporary = place.with_name(f".{SIGNATURE}.new")
    temporary.write_text(done.stdout.hex() + "\n", encoding="ascii")
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
    elif _manifest_is_signed(image, public, path):
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


def _manifest_is_signed(image: ImageManifest, public: str, path: Path) -> bool:
    try:
        signature = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (ValueError, OSError):
        return False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_bytes(_signed_text(image))
        (folder / "signature").write_bytes(signature)
        (folder / "public").write_bytes(PUBLIC_DER + bytes.fromhex(public))
        command = ["openssl", "dgst", "-sha256", "-keyform", "DER", "-verify"]
        command += [str(folder / "public"), "-signature", str(folder / "signature")]
        done = subprocess.run(
            [*command, str(folder / "text")], capture_output=True, check=False, timeout=OPENSSL_S
        )
    return done.returncode == 0


def _private_der(key_file: Path) -> bytes:
    try:
        with key_file.open(encoding="ascii") as file:
            text = file.read(KEY_FILE_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the fleet's key {key_file}: {error}") from error
    digits = text.removeprefix(PRIVATE_PREFIX)
    if not text.startswith(PRIVATE_PREFIX) or not re.fullmatch(r"[0-9a-fA-F]{64}", digits):
        raise UsageError(f"{key_file} holds no private fleet key", "make one: duckctl init")
    before, after = PRIVATE_DER
    return before + bytes.fromhex(digits) + after


def _run(command: Sequence[str], given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a signing program; its first line of complaint becomes ours."""
    if shutil.which(command[0]) is None:
        raise ImageError(f"{command[0]} is not installed", f"sudo apt-get install {command[0]}")
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=OPENSSL_S)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise ImageError(f"{command[0]} failed: {said[0] if said else 'no message'}")
    return done
