"""The fleet's key pair is made once, private from its first byte, never shown or overwritten."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from duckctl import cli
from duckctl.errors import ExitCode, UsageError
from duckctl.keys import (
    check_key,
    make_key,
    private_key,
    public_key,
    public_path,
    read_public_key,
    sign_bytes,
    verify_bytes,
)


def test_init_makes_a_private_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["init", "--fleet-dir", str(tmp_path)]) == ExitCode.OK
    path = tmp_path / "fleet.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = path.read_text(encoding="ascii")
    assert re.fullmatch(r"duck-p256-private:[0-9a-f]{64}\n", key)
    public = (tmp_path / "fleet.pub").read_text(encoding="ascii")
    assert re.fullmatch(r"duck-p256-public:04[0-9a-f]{128}\n", public)
    assert cli.run(["init", "--check", "--fleet-dir", str(tmp_path)]) == ExitCode.OK
    assert cli.run(["init", "--check", "--fleet-dir", str(tmp_path), "--json"]) == ExitCode.OK
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["key_file"], document["made"]) == (str(path), False)
    assert document["public_key_file"] == str(tmp_path / "fleet.pub")
    assert key.strip() not in captured.out + captured.err


def test_the_pair_belongs_together(tmp_path: Path) -> None:
    """The public half is the private one's by another library's arithmetic."""
    path = tmp_path / "fleet.key"
    make_key(path)
    scalar = int.from_bytes(private_key(path))
    point = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    expected = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    assert read_public_key(public_path(path)) == expected == public_key(path)
    public_path(path).unlink()
    assert public_key(path) == expected
    assert read_public_key(public_path(path)) == expected
    make_key(tmp_path / "other.key")
    public_path(path).write_bytes((tmp_path / "other.pub").read_bytes())
    with pytest.raises(UsageError, match="does not belong to"):
        public_key(path)


def test_files_are_signed(tmp_path: Path) -> None:
    """Signatures of files: right ones hold, by another library too; everything else does not."""
    path = tmp_path / "fleet.key"
    make_key(path)
    make_key(tmp_path / "other.key")
    data = bytes(range(256)) * 40
    signature = sign_bytes(path, data)
    r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public_key(path))
    labelled = b"duck file 1" + data
    point.verify(encode_dss_signature(r, s), labelled, ec.ECDSA(hashes.SHA256()))
    pub = public_path(path)
    assert verify_bytes(pub, data, signature)
    assert not verify_bytes(pub, data + b"x", signature)
    assert not verify_bytes(pub, data, bytes(64))
    assert not verify_bytes(pub, data, signature[:63])
    assert not verify_bytes(tmp_path / "other.pub", data, signature)


def test_two_keys_differ(tmp_path: Path) -> None:
    make_key(tmp_path / "a.key")
    make_key(tmp_path / "b.key")
    assert private_key(tmp_path / "a.key") != private_key(tmp_path / "b.key")


def test_an_old_key_is_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_key(tmp_path / "fleet.key")
    before = (tmp_path / "fleet.key").read_bytes()
    assert cli.run(["init", "--fleet-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "there is already a file" in capsys.readouterr().err
    assert (tmp_path / "fleet.key").read_bytes() == before


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "fleet.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError):
        make_key(tmp_path / "fleet.key")
    assert not (tmp_path / "elsewhere").exists()


def test_a_loose_umask_does_not_loosen_the_key(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_key(tmp_path / "fleet.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "fleet.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "fleet.key"
    make_key(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"mode {mode:04o}") as caught:
        check_key(path)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"12\n",
        b"duck-p256-private:" + b"g" * 64,
        b"duck-p256-private:" + b"a" * 63,
        b"duck-p256-private:" + b"a" * 65,
        bytes(range(128, 192)),
        b"duck-p256-public:04" + b"a" * 128,
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="does not hold 'duck-p256-private:' and 64 hex") as caught:
        check_key(path)
    assert "ggg" not in str(caught.value)


def test_a_shared_key_of_an_older_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fleet.key"
    path.write_text("ab" * 32 + "\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="shared key of an older version") as caught:
        check_key(path)
    assert "duckctl init" in caught.value.hint and "fleet.pub" in caught.value.hint


def test_a_missing_key_names_the_command_that_makes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["init", "--check", "--fleet-dir", str(tmp_path)]) == ExitCode.USAGE
    assert f"duckctl init --fleet-dir {tmp_path}" in capsys.readouterr().err


def test_a_folder_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "fleet.key").mkdir()
    with pytest.raises(UsageError, match="not a regular file"):
        check_key(tmp_path / "fleet.key")
