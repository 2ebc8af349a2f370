"""duckos switches off so that the machine stays off."""

from __future__ import annotations

from pathlib import Path

import duckos_host
import pytest


@pytest.mark.parametrize("blocks", ["one", "two"])
def test_the_press_that_switched_off_does_not_wake(tmp_path: Path, blocks: str) -> None:
    """At the moment of falling asleep no event is pending and the button's is not enabled, in both
    of ACPI's blocks; the type of sleep was written before, alone."""
    program = duckos_host.build_program(tmp_path, "test_power_off")
    assert duckos_host.run_program(program, blocks) == "off\n"
