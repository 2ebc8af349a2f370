"""The echo kernel, built once per test session."""

from __future__ import annotations

import pytest
from transport_kit import build_echo_kernel


@pytest.fixture(scope="session")
def echo_kernel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_echo_kernel(tmp_path_factory.mktemp("kernel"))
