"""The table of sizes in docs/reference/duckos.md tells the tree's sizes."""

from __future__ import annotations

import re

import sizes

from duckctl.native import native_path

PAGE = sizes.ROOT / "docs/reference/duckos.md"


def test_the_table_is_up_to_date() -> None:
    """Every part is listed, and no line count or size is off by more than a fifth."""
    text = PAGE.read_text().split("<!-- sizes -->")[1].split("<!-- /sizes -->")[0]
    listed = {
        name: int(lines) for name, lines in re.findall(r"^\| `(\S+)` \| (\d+) \|", text, re.M)
    }
    real = {name: lines for name, (lines, _) in sizes.rows().items()}
    size = re.search(r"`duckos.img` \| – \| (\d+) KB", text)
    image = native_path("duckos.img").stat().st_size // 1024
    fresh = f"python tests/duckos/sizes.py prints:\n{sizes.table(image * 1024)}"
    assert listed.keys() == real.keys(), fresh
    assert [name for name in real if abs(listed[name] - real[name]) > real[name] / 5] == [], fresh
    assert size is not None
    assert abs(int(size[1]) - image) <= image / 5, fresh


def test_every_folder_is_in_the_table() -> None:
    """No part of duckos is forgotten."""
    folders = {path.name for path in sizes.DUCKOS.iterdir() if path.is_dir()}
    assert folders <= sizes.PARTS.keys()
