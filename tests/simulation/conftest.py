"""The simulator, compiled once per test session."""

from __future__ import annotations

from pathlib import Path

import pytest
from flock_kit import build_flock, require_programs


@pytest.fixture(scope="session")
def flock_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_programs()
    return build_flock(tmp_path_factory.mktemp("flock"))
