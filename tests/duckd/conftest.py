"""Fixtures of the duckd tests: the binary under test, compiled kernels, a running duck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckd_process
import pytest
from duckd_process import DuckProcess, kernel_builder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--duckd", type=Path, help="test this duckd instead of the installed one")


@pytest.fixture(scope="session", autouse=True)
def _binary_under_test(request: pytest.FixtureRequest) -> None:
    chosen: Path | None = request.config.getoption("--duckd", default=None)
    if chosen is not None:
        duckd_process.chosen_binary = chosen.resolve()


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """kernel("echo", "REFUSE_START"): the bytes of a test kernel, compiled once."""
    return kernel_builder(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[DuckProcess]:
    with DuckProcess(tmp_path) as running:
        yield running
