"""iPXE scripts. They end with a failure when nothing works: ``exit 0`` would tell UEFI firmware
that all is well, and it would stop in its menu instead of going on to the next device."""

from __future__ import annotations

import zlib

from duckctl.boot.answers import duck_of, web_root, why_no_image
from duckctl.boot.plan import BootPlan
from duckctl.inventory import Domain

TRIES = 5
WAIT_S_MAX = 8  # ducks that started together wait for different times


def first_script(plan: BootPlan, domain: Domain) -> str:
    """What every iPXE of a domain fetches: goes on to the script of the card that is open.

    ``netX`` is the card that iPXE booted from; ``net0`` would be the first one (ipxe#826).
    """
    return _with_retries(
        f"# fleet {plan.fleet.name}, {domain.name}",
        [f"chain {web_root(plan, domain)}/duck/${{netX/mac:hexhyp}}.ipxe"],
        1 + zlib.crc32(domain.name.encode()) % WAIT_S_MAX,
    )


def duck_script(plan: BootPlan, domain: Domain, mac: str) -> str:
    """The script of one box: loads its image, or says why it has none."""
    duck = duck_of(plan, mac)
    wait_s = 1 + zlib.crc32(mac.encode()) % WAIT_S_MAX
    reason = why_no_image(plan, duck)
    if reason:
        return f"#!ipxe\necho duckctl: {_plain(reason)}\nsleep {wait_s}\nexit 1\n"
    image = plan.images[plan.image_name_of(duck)]
    name = duck.name if duck is not None else ""
    base = f"{web_root(plan, domain)}/images/{image.name}"
    title = f"# {name or mac}: image {image.name} {image.version} {image.digest[:12]}"
    if image.kind == "duckos":
        # The hybrid file is a bzImage for iPXE on BIOS and an application on UEFI.
        return _with_retries(title, [f"kernel {base}/duckos.img", "boot"], wait_s)
    kernel, initrd = image.files["kernel"].path, image.files["initrd"].path
    words = [f"initrd={initrd}", image.command_line, f"BOOTIF=01-{mac.replace(':', '-')}"]
    if name:
        words.append(f"duck.name={name}")
    return _with_retries(
        title,
        [f"kernel {base}/{kernel} {' '.join(words)}", f"initrd {base}/{initrd}", "boot"],
        wait_s,
    )


def _with_retries(title: str, steps: list[str], wait_s: int) -> str:
    lines = ["#!ipxe", title, "set tries:int32 0", ":again"]
    lines += [f"{step} || goto failed" for step in steps]
    lines += [
        ":failed",
        "imgfree",
        "inc tries",
        f"iseq ${{tries}} {TRIES} && goto over ||",
        f"sleep {wait_s}",
        "goto again",
        ":over",
        "echo duckctl: given up",
        "exit 1",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text that iPXE reads as words only."""
    return "".join(c if c.isalnum() or c in " .,:'()-_" else " " for c in text)
