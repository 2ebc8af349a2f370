"""What pyproject.toml promises of a distribution is what the sources need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The first typer that has its own base class of usage errors.
TYPER_EXCEPTION_SINCE = (0, 28)
# What a distribution holds of others: the words in our build files that put it there, its licence.
FOREIGN_PARTS = {
    "BearSSL.txt": ("${BEARSSL_LIBRARY}", "Permission is hereby granted, free of charge"),
    "glibc.txt": ("-static-pie)", "GNU Lesser General Public License"),
    "DPDK.txt": ("pkg_check_modules(DPDK libdpdk)", "Redistribution and use in source and binary"),
    "ducklet.txt": ('"duckctl"', "Permission is hereby granted, free of charge"),
}


def test_typer_is_new_enough_for_its_exceptions() -> None:
    """cli.py catches typer.TyperException: an older typer would end every error in a traceback."""
    assert "typer.TyperException" in (ROOT / "duckctl" / "cli.py").read_text(encoding="utf-8")
    (bound,) = [entry for entry in PROJECT["dependencies"] if entry.startswith("typer")]
    major, minor = re.fullmatch(r"typer>=(\d+)\.(\d+)", bound).groups()  # type: ignore[union-attr]
    assert (int(major), int(minor)) >= TYPER_EXCEPTION_SINCE


def test_distributions_hold_the_notices_of_foreign_parts() -> None:
    """Each part has its copyright line and licence among the licence files, named in the README."""
    packed = {path.name: path for entry in PROJECT["license-files"] for path in ROOT.glob(entry)}
    assert set(packed) == {*FOREIGN_PARTS, "LICENSE", "LGPL-2.1.txt"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("\nLicence: ")[2]
    areas = ("images", "kernels", "host_runtime")
    builds = [path for area in areas for path in (ROOT / area).rglob("CMakeLists.txt")]
    built = "".join(path.read_text(encoding="utf-8") for path in builds)
    built += (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, (word, licence) in FOREIGN_PARTS.items():
        text = packed[name].read_text(encoding="utf-8")
        assert word in built, f"{name}: is that part of it still?"
        assert re.search(r"^ *Copyright \(c\) ", text, re.M | re.I), name
        assert licence in text, name
        assert f"`{name}`" in readme, name
    assert "Version 2.1, February 1999" in packed["LGPL-2.1.txt"].read_text(encoding="utf-8")
