"""The host's part of a run: the real playbook, refused by its own preflight before any duck."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lifecycle_kit import INVENTORY, SWITCHED, shelf, write_inventory

from duckctl.cli import run as duckctl
from duckctl.inventory import load_inventory
from duckctl.keys import make_key
from duckctl.provision.host import host_step

HOST = """\
    gpu_host:
      hosts:
        big: {ansible_connection: local}
"""


def with_host(folder: Path) -> Path:
    """The shelf behind a port that no machine has, so the playbook can change nothing."""
    text = INVENTORY.replace("POWER", SWITCHED).replace(
        "  children:\n    ducks:", f"  children:\n{HOST}    ducks:"
    )
    path = folder / "shelf.yml"
    for number in (1, 2):
        address = f"domain_host_address: 10.21.{number}.1"
        text = text.replace(address, f'{address}, domain_host_pci: "ffff:ff:1f.{number}"')
    path.write_text(text)
    return path


def test_a_fleet_without_a_host_leaves_it_alone(tmp_path: Path) -> None:
    """No group gpu_host, or --skip-host: the plan says so."""
    fleet = shelf(tmp_path)
    assert host_step(fleet, skip=False) == "left as it is (the inventory has no group gpu_host)"
    assert host_step(fleet, skip=True) == "left as it is (--skip-host)"
    hosted = load_inventory(with_host(tmp_path))
    assert host_step(hosted, skip=False).startswith("playbook 'host' on big")


@pytest.mark.slow
def test_a_host_that_is_not_ready_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real playbook refuses ports that are not there; no duck is looked at or switched, and the
    error says why and what to do."""
    pytest.importorskip("ansible_runner")
    path = with_host(tmp_path)
    make_key(tmp_path / "fleet.key")
    words = ["provision", "--skip-images", "--skip-self-test", "--inventory", str(path)]
    assert duckctl(words) == 1
    said = capsys.readouterr()
    assert "the playbook 'host' failed on big" in said.err
    assert "no PCI device ffff:ff:1f.1" in said.err
    assert "--skip-host" in said.err
    assert said.out == ""
    assert not (tmp_path / "shelf.state.db").exists()


def test_a_dry_run_shows_the_plan_without_a_host_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--dry-run runs no playbook, makes no image and no state file."""
    path = write_inventory(tmp_path)
    make_key(tmp_path / "fleet.key")
    before = sorted(entry.name for entry in tmp_path.iterdir())
    assert duckctl(["provision", "--dry-run", "--json", "--inventory", str(path)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(image["name"], image["why"]) for image in plan["images"]] == [
        ("linux", "there is none")
    ]
    assert {duck["action"] for duck in plan["ducks"]} == {"switch"}
    after = sorted(entry.name for entry in tmp_path.iterdir())
    assert [name for name in after if "pins" not in name] == before
