"""Small checkpoints shared by the shard tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from shard_helpers import MakeCheckpoint
from synthetic_checkpoint import CheckpointSpec, write_checkpoint


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """Checkpoints by spec, each written once per test session; tests must not change them."""
    made: dict[CheckpointSpec, Path] = {}

    def make(spec: CheckpointSpec) -> Path:
        if spec not in made:
            made[spec] = write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model", spec)
        return made[spec]

    return make
