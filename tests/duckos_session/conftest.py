"""Fixtures of duckos' session tests: the image under test, and compiled kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

for folder in ("duckd", "kernels"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--duckos", type=Path, help="test this duckos.img, not the installed one")


@pytest.fixture(scope="session", autouse=True)
def _image_under_test(request: pytest.FixtureRequest) -> None:
    import duckos_guest

    chosen: Path | None = request.config.getoption("--duckos", default=None)
    if chosen is not None:
        duckos_guest.chosen_image = chosen.resolve()


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """kernel("echo", "REFUSE_START"): the bytes of a test kernel, compiled once."""
    from duckd_process import kernel_builder

    return kernel_builder(tmp_path_factory.mktemp("kernels"))
