"""Ducks with fp9 weights answer all reference prompts token for token, MTP on and off."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity_fleet import assert_parity, remote_fleet


@pytest.mark.slow
@pytest.mark.parametrize("ducks", [1, 2, 4, 8])
def test_parity_of_remote_ducks(tmp_path: Path, ducks: int) -> None:
    with remote_fleet(tmp_path, ducks, "fp9") as experts:
        for mtp in (True, False):
            assert_parity(experts, mtp)
