"""What the transport's tests build once per test session."""

from __future__ import annotations

import pytest
from native_kit import SanitizedObjects, compile_all, sanitizer_flags, transport_sources
from transport_kit import build_echo_kernel


@pytest.fixture(scope="session")
def echo_kernel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_echo_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="session")
def sanitized_objects(tmp_path_factory: pytest.TempPathFactory) -> SanitizedObjects:
    made: dict[str, list[str]] = {}

    def objects(sanitizer: str) -> list[str]:
        if sanitizer not in made:
            folder = tmp_path_factory.mktemp("objects")
            made[sanitizer] = compile_all(transport_sources(), folder, sanitizer_flags(sanitizer))
        return made[sanitizer]

    return objects
