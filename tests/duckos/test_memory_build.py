"""duckos' page tables for a box of 32 GB: built and looked through on this machine."""

from __future__ import annotations

from pathlib import Path

import duckos_host
import pytest
from duckos_host import DUCKOS, HERE


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Symbols of the image are absolute addresses here: no position-independent code. And no address
    # sanitizer: its shadow lies where the arena must be.
    flags = ["-fno-pie", "-no-pie", "-D_GNU_SOURCE", "-O2", "-Wno-int-to-pointer-cast"]
    folder = tmp_path_factory.mktemp("build")
    parts = [DUCKOS / f"memory/{name}.c" for name in ("map", "memory", "paging")]
    return duckos_host.build_program(
        folder, "test_memory_build", *parts, HERE / "fakes.c", flags=flags
    )


@pytest.mark.parametrize("pages", ["1g", "2m"])
def test_tables_for_32_gb_with_holes(program: Path, pages: str) -> None:
    """The window has 30.5 GiB over all holes, rights never mix writing and executing, stacks have
    guard pages, sessions' spaces give all their tables back."""
    assert duckos_host.run_program(program, pages).splitlines()[-1].startswith("window 31")
