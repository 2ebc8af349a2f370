"""``duckctl image``: builds, shows, checks and signs what ducks boot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from duckctl.console import human_bytes, print_json, print_table, talk
from duckctl.errors import ExitCode
from duckctl.image.manifest import (
    ImageManifest,
    as_document,
    find_image,
    image_dir,
    list_images,
    verify_files,
)
from duckctl.inventory_choice import choose_inventory

if TYPE_CHECKING:
    from duckctl.inventory import Fleet

app = typer.Typer(help="Build, show, check and sign the images that ducks boot.")
build_app = typer.Typer(help="Build an image; the same input gives the same digest.")
app.add_typer(build_app, name="build", no_args_is_help=True)

INVENTORY = typer.Option(None, "--inventory", help="Inventory file.  [default: the lab's]")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
IMAGE_NAME = typer.Option("", "--name", help="Name of the image.  [default: its kind]")
NAME = typer.Argument(help="Name of an image (duckctl image ls).")


def _fleet_dir(fleet: Fleet) -> Path:
    return fleet.path.resolve().parent


def _public(fleet: Fleet) -> str:
    from duckctl.image.fleet_public import public_path, read_public

    return read_public(public_path(fleet.key_file))


def _report(fleet: Fleet, image: ImageManifest, as_json: bool) -> None:
    if as_json:
        print_json(as_document(image))
        return
    folder = image_dir(_fleet_dir(fleet), image.name)
    rows = [
        (role, file.path, human_bytes(file.size), file.sha256[:16])
        for role, file in image.files.items()
    ]
    print_table(
        f"{image.name}: {image.kind} {image.version}, digest {image.digest[:16]}",
        ("role", "file", "size>", "sha256"),
        rows,
    )
    talk(f"{folder}; build {image.build_hash[:12]}, fleet key {image.fleet_public_id}")


@build_app.command("duckos")
def build_duckos_command(
    inventory: Path | None = INVENTORY,
    name: str = IMAGE_NAME,
    poll: str = typer.Option("", "--poll", help="spin (hardware) or hlt (shared machines)."),
    console: str = typer.Option("", "--console", help="serial, screen, both or off."),
    memory_limit: str = typer.Option("", "--memory-limit", help="Of sessions, e.g. 30G."),
    watchdog: str = typer.Option("", "--watchdog", help="on or off."),
    as_json: bool = AS_JSON,
) -> None:
    """Build the bare-metal image: the built duckos.img with this fleet's public key in it.

    \b
    Examples:
      duckctl image build duckos --inventory inventory/rack32.yml
      duckctl image build duckos --poll hlt --console serial --name duckos-lab
    """
    from duckctl.image.duckos import DuckosOptions, build_duckos

    fleet = choose_inventory(inventory)
    options = DuckosOptions(poll, console, memory_limit, watchdog=watchdog)
    image = build_duckos(_fleet_dir(fleet), _public(fleet), name or "duckos", options)
    _report(fleet, image, as_json)


@build_app.command("linux")
def build_linux_command(
    inventory: Path | None = INVENTORY,
    name: str = IMAGE_NAME,
    kernel_package: Path | None = typer.Option(
        None, "--kernel-package", help="A linux-image-VERSION-amd64 package file of Debian."
    ),
    download: bool = typer.Option(False, "--download", help="Let apt fetch that package."),
    release: str | None = typer.Option(None, "--release", help="An installed kernel's release."),
    poll: str = typer.Option("spin", "--poll", help="spin (hardware), sleep or block."),
    append: list[str] = typer.Option([], "--append", help="More words for the kernel."),
    firmware: Path | None = typer.Option(None, "--firmware", help="Folder for /lib/firmware."),
    as_json: bool = AS_JSON,
) -> None:
    """Build the Linux image: Debian's kernel, network drivers, duckd and the fleet's public key.

    Without --kernel-package and --download the newest installed kernel is taken.

    \b
    Examples:
      duckctl image build linux --inventory inventory/rack32.yml --download
      duckctl image build linux --kernel-package linux-image-6.1.0-57-amd64_6.1.192-3_amd64.deb
    """
    from duckctl.image.linux import KernelChoice, LinuxOptions, build_linux

    fleet = choose_inventory(inventory)
    image = build_linux(
        _fleet_dir(fleet),
        _public(fleet),
        name or "linux",
        KernelChoice(kernel_package, download, release),
        LinuxOptions(poll, tuple(append), firmware),
    )
    _report(fleet, image, as_json)


@app.command("ls")
def list_command(inventory: Path | None = INVENTORY, as_json: bool = AS_JSON) -> None:
    """List the images of a fleet.

    \b
    Examples:
      duckctl image ls --inventory inventory/rack32.yml
      duckctl image ls --json
    """
    fleet = choose_inventory(inventory)
    images = list_images(_fleet_dir(fleet))
    if as_json:
        print_json({"images": [as_document(image) for image in images]})
        return
    rows = [
        (
            image.name,
            image.kind,
            image.version,
            image.digest[:16],
            image.build_hash[:12],
            human_bytes(sum(file.size for file in image.files.values())),
            sum(duck.image == image.name for duck in fleet.ducks),
        )
        for image in images
    ]
    print_table("", ("image", "kind", "version", "digest", "build", "size>", "ducks>"), rows)


@app.command()
def show(name: str = NAME, inventory: Path | None = INVENTORY, as_json: bool = AS_JSON) -> None:
    """Show what an image is made of.

    \b
    Examples:
      duckctl image show duckos
      duckctl image show linux --json
    """
    fleet = choose_inventory(inventory)
    _report(fleet, find_image(_fleet_dir(fleet), name), as_json)


@app.command()
def verify(name: str = NAME, inventory: Path | None = INVENTORY, as_json: bool = AS_JSON) -> None:
    """Check every byte of an image, its fleet key and its signatures. Exit code 1 on a problem.

    \b
    Examples:
      duckctl image verify linux
    """
    from duckctl.image.signing import verify_signatures

    fleet = choose_inventory(inventory)
    folder = _fleet_dir(fleet)
    image = find_image(folder, name)
    problems = verify_files(folder, image)
    report = verify_signatures(folder, image, fleet.key_file)
    wrong = [*problems, *report.problems]
    if as_json:
        checked = {"ok": not wrong, "problems": wrong, "good": list(report.good)}
        print_json({"name": name, "digest": image.digest, **checked})
        if wrong:
            raise typer.Exit(ExitCode.FAILURE)
        return
    for problem in wrong:
        talk(f"wrong: {problem}")
    for text in report.good:
        talk(text)
    if wrong:
        raise typer.Exit(ExitCode.FAILURE)
    talk(f"{name}: {len(image.files)} files as built, digest {image.digest[:16]}")


@app.command()
def sign(
    name: str = NAME,
    inventory: Path | None = INVENTORY,
    key: Path | None = typer.Option(None, "--key", help="Secure Boot key (PEM), with --cert."),
    cert: Path | None = typer.Option(None, "--cert", help="Its certificate (PEM)."),
    as_json: bool = AS_JSON,
) -> None:
    """Sign an image: its manifest with the fleet's key; its UEFI file for Secure Boot with --key.

    \b
    Examples:
      duckctl image sign linux
      duckctl image sign linux --key db.key --cert db.crt
    """
    from duckctl.image.signing import sign_for_secure_boot, sign_manifest

    fleet = choose_inventory(inventory)
    folder = _fleet_dir(fleet)
    image = find_image(folder, name)
    if (key is None) != (cert is None):
        raise typer.BadParameter("give both --key and --cert", param_hint="--key")
    if key is not None and cert is not None:
        image = sign_for_secure_boot(folder, image, key, cert)
        talk(f"{name}: signed for Secure Boot and verified; new digest {image.digest[:16]}")
    path = sign_manifest(folder, image, fleet.key_file)
    if as_json:
        signed = {"signature": str(path), "secure_boot": key is not None}
        print_json({"name": name, "digest": image.digest, **signed})
        return
    talk(f"{name}: manifest signed with the fleet's key: {path}")
