"""Debian's kernel package for tests that boot it, kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def real_kernel_package() -> Path:
    """Debian's kernel package, kept in the user's cache; skips where apt cannot fetch it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "duckctl-tests"
    cache.mkdir(parents=True, exist_ok=True)
    found = sorted(cache.glob("linux-image-*-amd64_*.deb"))
    if found:
        return found[-1]
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get, and no kernel package in the cache")
    shown = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=False
    )
    names = [word for word in shown.stdout.split() if word.startswith("linux-image-")]
    if len(names) < 2:
        pytest.skip("apt does not know linux-image-amd64 (apt-get update)")
    done = subprocess.run(
        ["apt-get", "download", names[1]], cwd=cache, capture_output=True, text=True, check=False
    )
    found = sorted(cache.glob("linux-image-*-amd64_*.deb"))
    if done.returncode != 0 or not found:
        pytest.skip(f"apt cannot download {names[1]}: {done.stderr.strip()[-200:]}")
    return found[-1]
