"""A panic of duckos stops the cores that it started, and leaves the others alone."""

from __future__ import annotations

from pathlib import Path

import duckos_host
from duckos_host import HERE


def test_cores_that_never_started_get_no_nmi(tmp_path: Path) -> None:
    """A silent core, and those that ``cores=`` leaves out, wait in the firmware's loop, whose
    handlers may be overwritten: an NMI there would reset the machine before the panic is told."""
    program = duckos_host.build_program(tmp_path, "test_halt_others", HERE / "fakes.c")
    output = duckos_host.run_program(program).splitlines()
    assert output[:2] == ["cpu: 3 cores run", "cpu: 1 cores did not answer, 0 are left out"]
    assert output[-1] == "cpu: 0 cores did not answer, 2 are left out"
