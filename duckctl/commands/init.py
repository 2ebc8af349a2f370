"""``duckctl init``: makes the fleet's key pair."""

from __future__ import annotations

from pathlib import Path

import typer

from duckctl.console import print_json, talk
from duckctl.errors import UsageError
from duckctl.keys import make_key, public_key, public_path

app = typer.Typer()


@app.command()
def init(
    fleet_dir: Path = typer.Option(
        Path("inventory"), "--fleet-dir", help="Folder of the inventory; the keys go there."
    ),
    check: bool = typer.Option(False, "--check", help="Only check the key that is there."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Make the fleet's key pair: FLEET_DIR/fleet.key (private, mode 0600) and fleet.pub.

    Ducks and boot images get fleet.pub and obey whoever holds fleet.key, which stays on the host:
    it is never shown and never overwritten. `duckctl trust` shows the ducks' own keys.

    \b
    Examples:
      duckctl init
      duckctl init --fleet-dir ~/rack
      duckctl init --fleet-dir ~/rack --check
    """
    path = fleet_dir / "fleet.key"
    if not check:
        if not fleet_dir.is_dir():
            raise UsageError(f"there is no folder {fleet_dir}", f"make it: mkdir -p {fleet_dir}")
        make_key(path)
        talk(f"wrote {path}; name it in the inventory: fleet_key_file: fleet.key")
        talk(f"wrote {public_path(path)} for the ducks and their images")
    public_key(path)
    if as_json:
        print_json(
            {"key_file": str(path), "public_key_file": str(public_path(path)), "made": not check}
        )
    elif check:
        talk(f"{path} is a good key file, and {public_path(path)} belongs to it")
