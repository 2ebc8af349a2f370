"""Signatures: the manifest by the fleet's key, the UEFI file for Secure Boot."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from image_kit import made_up_duckos, make_fleet_dir

from duckctl.image.duckos import build_duckos
from duckctl.image.fleet_public import read_public
from duckctl.image.manifest import (
    ImageError,
    ImageManifest,
    describe_file,
    find_image,
    image_dir,
    images_dir,
    install_image,
    verify_files,
)
from duckctl.image.signing import (
    SIGNATURE,
    secure_boot_signatures,
    sign_for_secure_boot,
    sign_manifest,
    verify_signatures,
)
from duckctl.image.uki import find_stub

needs_sbsign = pytest.mark.skipif(
    shutil.which("sbsign") is None or find_stub() is None,
    reason="sbsigntool or systemd-boot-efi is not installed",
)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet_dir(tmp_path / "fleet").parent


@pytest.fixture
def image(fleet: Path, tmp_path: Path) -> ImageManifest:
    source = tmp_path / "duckos.img"
    source.write_bytes(made_up_duckos())
    return build_duckos(fleet, read_public(fleet / "fleet.pub"), source=source)


def test_the_fleet_key_signs_a_manifest(fleet: Path, image: ImageManifest) -> None:
    """Signed, verified; no signature is said so."""
    key = fleet / "fleet.key"
    assert verify_signatures(fleet, image, key).good == (
        "the manifest is not signed (duckctl image sign)",
    )
    sign_manifest(fleet, image, key)
    report = verify_signatures(fleet, image, key)
    assert report.problems == ()
    assert report.good == ("the manifest is signed by the fleet's key",)


def test_forged_signatures_are_refused(fleet: Path, image: ImageManifest, tmp_path: Path) -> None:
    """Another key, another image's signature, one changed byte, junk."""
    key = fleet / "fleet.key"
    path = sign_manifest(fleet, image, key)
    good = path.read_text()
    other = make_fleet_dir(tmp_path / "other").parent
    with pytest.raises(ImageError, match="was built for fleet key"):
        sign_manifest(fleet, image, other / "fleet.key")
    changed = good[:-3] + ("0" if good[-3] != "0" else "1") + good[-2:]
    for text in (changed, "", "zz", "00" * 70):
        path.write_text(text)
        assert verify_signatures(fleet, image, key).problems != (), text
    path.write_text(good)
    wrong = verify_signatures(fleet, image, other / "fleet.key").problems
    assert len(wrong) == 2


def test_a_rebuilt_image_is_not_signed(fleet: Path, image: ImageManifest, tmp_path: Path) -> None:
    """A signature does not outlive its image."""
    sign_manifest(fleet, image, fleet / "fleet.key")
    source = tmp_path / "again.img"
    source.write_bytes(made_up_duckos())
    build_duckos(fleet, read_public(fleet / "fleet.pub"), source=source)
    assert not (image_dir(fleet, "duckos") / SIGNATURE).exists()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "db.key", folder / "db.crt"
    subprocess.run(
        ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=db",
         "-keyout", str(key), "-out", str(certificate), "-days", "30"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


@needs_sbsign
def test_t19_secure_boot_signatures_pass_a_gate(fleet: Path, tmp_path: Path) -> None:
    """sbverify accepts what was signed before it is installed; a changed byte fails it (T19)."""
    stub = find_stub()
    assert stub is not None
    staged = images_dir(fleet) / ".linux.new"
    staged.mkdir(parents=True)
    shutil.copy(stub, staged / "linux.efi")
    blank = ImageManifest("linux", "linux", "1", "", "b" * 40, "f" * 16, "", {}, {})
    files = {"uki": describe_file(staged / "linux.efi")}
    image = install_image(fleet, replace(blank, files=files), staged)
    uki = image_dir(fleet, "linux") / "linux.efi"
    assert secure_boot_signatures(uki) == 0
    key, certificate = make_certificate(tmp_path)
    signed = sign_for_secure_boot(fleet, image, key, certificate)
    assert find_image(fleet, "linux") == signed
    assert verify_files(fleet, signed) == []
    assert signed.digest != image.digest
    assert secure_boot_signatures(uki) == 1
    data = bytearray(uki.read_bytes())
    data[5000] ^= 1
    uki.write_bytes(data)
    done = subprocess.run(
        ["sbverify", "--cert", str(certificate), str(uki)], capture_output=True, check=False
    )
    assert done.returncode != 0


@needs_sbsign
def test_t19_a_wrong_certificate_leaves_the_image_alone(
    fleet: Path, image: ImageManifest, tmp_path: Path
) -> None:
    """Key and certificate that do not belong together, and a file that is no PE: refused."""
    key, _ = make_certificate(tmp_path)
    (tmp_path / "two").mkdir()
    _, other = make_certificate(tmp_path / "two")
    before = (image_dir(fleet, "duckos") / "duckos.img").read_bytes()
    with pytest.raises(ImageError, match=r"(sbsign|sbverify) failed"):
        sign_for_secure_boot(fleet, image, key, other)
    assert (image_dir(fleet, "duckos") / "duckos.img").read_bytes() == before
    assert find_image(fleet, "duckos") == image
