"""``shard-weights --host-weights`` exports beside sharding, and says why when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from duckctl import cli
from duckctl.errors import ExitCode


@pytest.mark.slow
def test_export_beside_sharding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both files are there; a folder that cannot be made is named, and the shards are kept."""
    cache = str(tmp_path / "cache")
    arguments = ["shard-weights", "ducklet", "--ducks", "2", "--cache-dir", cache]
    host = tmp_path / "host"
    assert cli.run([*arguments, "--host-weights", str(host)]) == ExitCode.OK
    assert sorted(path.name for path in host.iterdir()) == [".host.lock", "host.bin", "host.json"]
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    capsys.readouterr()
    assert cli.run([*arguments, "--host-weights", str(blocked / "x")]) == ExitCode.FAILURE
    assert f"cannot write {blocked / 'x'}" in capsys.readouterr().err
    assert cli.run(arguments) == ExitCode.OK
