"""``duckctl init``: makes the fleet key."""

from __future__ import annotations

from pathlib import Path

import typer

from duckctl.console import talk
from duckctl.errors import UsageError
from duckctl.keys import check_key, make_key

app = typer.Typer()


@app.command()
def init(
    fleet_dir: Path = typer.Option(
        Path("inventory"), "--fleet-dir", help="Folder of the inventory; the key goes there."
    ),
    check: bool = typer.Option(False, "--check", help="Only check the key that is there."),
) -> None:
    """Make the key that host and ducks share: 64 hex digits in FLEET_DIR/fleet.key, mode 0600.

    Whoever has the key can run code on the ducks. It is never shown and never overwritten.

    \b
    Examples:
      duckctl init
      duckctl init --fleet-dir ~/rack
      duckctl init --fleet-dir ~/rack --check
    """
    path = fleet_dir.expanduser() / "fleet.key"
    if not check:
        if not fleet_dir.expanduser().is_dir():
            raise UsageError(f"there is no folder {fleet_dir}", f"make it: mkdir -p {fleet_dir}")
        make_key(path)
        talk(f"wrote {path}; name it in the inventory: fleet_key_file: fleet.key")
    check_key(path)
    if check:
        talk(f"{path} is a good key file")
