"""Running ducks that serve random experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from duck_process import Duck, running_ducks
from random_experts import RandomExperts

from duckctl.native import native_path
from host_runtime.experts import remote as remote_module
from host_runtime.experts.remote import RemoteExperts, RemoteOptions


def limit_calls(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Compute sessions opened from now on have so few call numbers."""
    usual = remote_module._transport_options
    monkeypatch.setattr(
        remote_module,
        "_transport_options",
        lambda options: replace(usual(options), session_calls_max=calls),
    )


@contextmanager
def serving(
    experts: RandomExperts, folder: Path, count: int, options: RemoteOptions | None = None
) -> Iterator[tuple[list[Duck], RemoteExperts]]:
    """``count`` ducks with their slices of the experts loaded, and the host's side of them."""
    cache_file = experts.write_cache(folder / "cache", count)
    with running_ducks(folder, count) as (ducks, fleet):
        kernel, library = native_path("experts-avx2.elf"), native_path("libduckhost.so")
        remote = RemoteExperts(fleet, cache_file, kernel, library, options)
        try:
            remote.start()
            yield ducks, remote
        finally:
            remote.close()
