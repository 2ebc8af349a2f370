"""A checkpoint of DeepSeek-V3.2's size is planned in seconds, in little memory, or refused.

Its files are sparse: real headers of 92,425 tensors and 668 GB of zeros that take no disk space.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shard_helpers import child_environment
from synthetic_checkpoint import CheckpointSpec, write_checkpoint

FULL_SIZE = CheckpointSpec(
    hidden=7168, moe=2048, experts=256, layers=61, dense=3, mtp=1,
    file_bytes_max=4_300_000_000, sparse=True,
)  # fmt: skip
MEASURE = """
import sys
from pathlib import Path
from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.manifest import fingerprint
from peak_memory import peak_rss_bytes
checkpoint = open_checkpoint(Path(sys.argv[1]))
mark = fingerprint(checkpoint)
print(len(checkpoint.tensors), checkpoint.expert_bytes, mark.complete, peak_rss_bytes())
"""


@pytest.mark.slow
def test_full_size_headers_are_checked_in_little_memory(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", FULL_SIZE)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(model)],
        env=child_environment(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    tensors, expert_bytes, complete, peak_bytes = run.stdout.split()
    assert (int(tensors), complete) == (92_425, "False")
    matrix_bytes = 7168 * 2048 + 4 * 56 * 16
    assert int(expert_bytes) == 59 * 256 * 3 * matrix_bytes
    assert int(peak_bytes) < 250_000_000

    cache_dir = tmp_path / "cache"
    dry = subprocess.run(
        [sys.executable, "-m", "duckctl", "shard-weights", str(model), "--ducks", "32",
         "--cache-dir", str(cache_dir), "--dry-run"],
        env=child_environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert dry.stdout.count("23447212032") == 32
    assert "90624 sharded, 1801 on the host, 0 ignored" in dry.stderr
    assert not cache_dir.exists()
