"""Running ducks that serve random experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duck_process import Duck, running_ducks
from random_experts import RandomExperts

from duckctl.native import native_path
from host_runtime.experts.remote import RemoteExperts, RemoteOptions


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
