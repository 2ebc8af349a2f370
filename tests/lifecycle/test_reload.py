"""A restarted duck that served is loaded again by the serving host, and `reboot` waits for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.process import read_ready_line

READY_S_MAX = 120.0


@pytest.mark.slow
def test_reboot_waits_until_the_duck_serves_again(tmp_path: Path) -> None:
    """Two process ducks serve ducklet; a reboot without --yes is refused, with it the duck comes
    back with a new boot, is loaded, and serves."""
    folder = LabFolder(tmp_path / "lab")
    lab.up(folder, LabShape(2, 1, 1, 1500, "block"), tied=True)
    duckctl = [sys.executable, "-P", "-m", "duckctl"]
    where = ["--inventory", str(folder.inventory)]
    words = [*duckctl, "serve", "ducklet", "--shard", "--port", "0", *where]
    words += ["--cache-dir", str(tmp_path / "cache")]
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
    assert server.stdout is not None
    try:
        line = read_ready_line(server.stdout, READY_S_MAX)
        assert line is not None, (tmp_path / "serve.log").read_text()
        reboot = [*duckctl, "reboot", "d01", "--json", *where]
        refused = subprocess.run(reboot, capture_output=True, text=True, check=False)
        assert (refused.returncode, "which serve" in refused.stderr) == (2, True)
        done = subprocess.run([*reboot, "--yes"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (duck,) = json.loads(done.stdout)["ducks"]
        assert (duck["state"], duck["note"]) == ("serving", None)
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
        lab.down(folder)
