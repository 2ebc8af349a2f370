"""One guest as a QEMU command line: a box with one NIC, no disk and no screen (pure functions)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from duckctl.lab.state import LabFolder
from duckctl.lab.vm.needs import OVMF_CODE, QEMU, program
from duckctl.lab.vm.shape import VmDuck
from duckctl.lab.vm.state import VmState

MONITOR = "qmp.sock"
VARIABLES = "variables.fd"
NIC_MODELS = {"virtio": "virtio-net-pci", "e1000e": "e1000e"}


def folder_of(folder: LabFolder, duck: VmDuck) -> Path:
    """Where a guest's own files are; QEMU runs there, so that socket paths stay short."""
    return folder.root / "machines" / duck.name


def role_of(duck: VmDuck) -> str:
    """The role of a duck's process in the lab's records."""
    return f"duck {duck.name}"


def mark_of(state: VmState, duck: VmDuck) -> str:
    """The guest's name for QEMU: no other process of this machine has it among its arguments."""
    return f"duck{state.lab_id}-{duck.name}"


def guest_command(
    state: VmState, folder: LabFolder, duck: VmDuck, start_options: Sequence[str]
) -> list[str]:
    """The QEMU command line of a guest; to be run in the switch's namespace.

    ``start_options`` say what it boots.
    """
    return [
        program(QEMU) or QEMU,
        *("-name", mark_of(state, duck)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-machine", "q35,usb=off,graphics=off", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-smp", str(duck.cores), "-m", f"{duck.memory_mib}M"),
        *("-chardev", f"file,id=log,path={_quoted(folder.log(duck.name))},append=on"),
        *("-serial", "chardev:log"),
        *("-qmp", f"unix:{MONITOR},server=on,wait=off"),
        *_nic(state, duck),
        *_firmware(state, duck),
        *start_options,
    ]


def _quoted(path: Path) -> str:
    """QEMU splits options at commas; two of them mean one."""
    return str(path).replace(",", ",,")


def _nic(state: VmState, duck: VmDuck) -> Sequence[str]:
    device = f"{NIC_MODELS[duck.nic]},netdev=net,mac={duck.mac},bootindex=1"
    if duck.nic == "virtio":
        device += f",host_mtu={state.shape.mtu}"
    # Without its option ROM a NIC is booted by the firmware's own driver, which is what a UEFI box
    # does; OVMF has no driver for e1000e, and a BIOS has none at all.
    if state.shape.boot == "kernel" or (duck.firmware == "uefi" and duck.nic == "virtio"):
        device += ",romfile="
    tap = f"tap,id=net,ifname={duck.port_name},script=no,downscript=no"
    return ("-netdev", tap, "-device", device)


def _firmware(state: VmState, duck: VmDuck) -> Sequence[str]:
    if duck.firmware == "bios":
        return ()
    # OVMF tries PXE over IPv4, over IPv6, then HTTP, a minute each: these switches shorten that.
    off = ["IPv6PXESupport"] + (["IPv4PXESupport"] if state.shape.boot == "http" else [])
    switches = [f"name=opt/org.tianocore/{name},string=no" for name in off]
    return (
        *(word for switch in switches for word in ("-fw_cfg", switch)),
        *("-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={OVMF_CODE}"),
        *("-drive", f"if=pflash,unit=1,format=raw,file={VARIABLES}"),
    )
