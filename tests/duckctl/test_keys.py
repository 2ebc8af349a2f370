"""The fleet key is made once, private from its first byte, and never shown or overwritten."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from duckctl import cli
from duckctl.errors import ExitCode, UsageError
from duckctl.keys import check_key, make_key


def test_init_makes_a_private_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["init", "--fleet-dir", str(tmp_path)]) == ExitCode.OK
    path = tmp_path / "fleet.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = path.read_text(encoding="ascii")
    assert re.fullmatch(r"[0-9a-f]{64}\n", key)
    captured = capsys.readouterr()
    assert key.strip() not in captured.out + captured.err


def test_two_keys_differ(tmp_path: Path) -> None:
    make_key(tmp_path / "a")
    make_key(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


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
    "content", [b"", b"12\n", b"g" * 64, b"a" * 63, b"a" * 65, bytes(range(128, 192)), b"a " * 32]
)
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="does not hold 64 hex digits") as caught:
        check_key(path)
    assert "ggg" not in str(caught.value)


def test_a_missing_key_names_the_command_that_makes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["init", "--check", "--fleet-dir", str(tmp_path)]) == ExitCode.USAGE
    assert f"duckctl init --fleet-dir {tmp_path}" in capsys.readouterr().err


def test_a_folder_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "fleet.key").mkdir()
    with pytest.raises(UsageError, match="not a regular file"):
        check_key(tmp_path / "fleet.key")
