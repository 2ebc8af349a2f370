"""``shard-weights --host-weights`` exports beside sharding, and says why when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from duckctl import cli
from duckctl.errors import ExitCode


@pytest.mark.slow
def test_export_beside_sharding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both files are there."""
    cache = str(tmp_path / "cache")
    arguments = ["shard-weights", "ducklet", "--ducks", "2", "--cache-dir", cache]
    host = tmp_path / "host"
    assert cli.run([*arguments, "--host-weights", str(host)]) == ExitCode.OK
    assert sorted(path.name for path in host.iterdir()) == [".host.lock", "host.bin", "host.json"]


def test_a_folder_that_cannot_be_written_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the way, and a folder of somebody else, are told before anything is converted."""
    cache = str(tmp_path / "cache")
    arguments = ["shard-weights", "ducklet", "--ducks", "2", "--cache-dir", cache]
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for host in (blocked, blocked / "x"):
        assert cli.run([*arguments, "--host-weights", str(host)]) == ExitCode.USAGE
        error = capsys.readouterr().err
        assert f"--host-weights {host}: {blocked} is not a folder" in error
    monkeypatch.setattr("duckctl.rights.may_write", lambda path: path != tmp_path)
    assert cli.run([*arguments, "--host-weights", str(tmp_path / "a/b")]) == ExitCode.USAGE
    assert f"may not write in the folder {tmp_path}" in capsys.readouterr().err
    assert not Path(cache).exists()
