"""Builds a bootable Debian disk with debootstrap, without loop devices: for tests of host roles.

The image has systemd, sshd, Python, GRUB in its MBR, and the cloud kernel (virtio, VFIO, Intel
IOMMU). It is kept in a cache folder; its name has a digest of this file, so another recipe makes
another image. Packages come from the mirror that this machine's apt is set up with.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import struct
import subprocess
import urllib.request
from pathlib import Path

SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "udev", "dbus", "openssh-server", "python3", "python3-apt"),
    *("linux-image-cloud-amd64", "initramfs-tools", "grub2-common", "grub-pc-bin"),
    *("iproute2", "ethtool", "kmod", "irqbalance", "dnsmasq-base"),
)
NEEDED = ("debootstrap", "mke2fs", "qemu-system-x86_64", "ssh", "ssh-keygen", "wget")
# What a test does not wait for.
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("dpkg-db-backup.timer", "e2scrub_reap.service", "systemd-timesyncd.service"),
    *("getty@tty1.service", "systemd-pstore.service"),
)
MANAGEMENT_MAC = "52:54:00:d0:00:01"
PARTITION_SECTOR = 2048
SECTOR_BYTES = 512
PARTITION_MIB = 1200
BUILD_S_MAX = 540
MIRROR_S_MAX = 20
GRUB_DEFAULTS = """\
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_CMDLINE_LINUX_DEFAULT="quiet"
GRUB_CMDLINE_LINUX="console=ttyS0"
GRUB_TERMINAL=serial
GRUB_DISABLE_OS_PROBER=true
GRUB_DISABLE_LINUX_UUID=true
"""
MANAGEMENT_NETWORK = f"""\
[Match]
MACAddress={MANAGEMENT_MAC}

[Network]
DHCP=ipv4
LinkLocalAddressing=no
"""


def missing_for_build() -> list[str]:
    """What this machine lacks to build and run the image; empty if nothing."""
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0:
        lacking.append("root (for debootstrap)")
    if mirror() is None:
        lacking.append("a Debian mirror in apt's sources")
    return lacking


def mirror() -> str | None:
    """The first Debian mirror of apt's configuration, deb822 or one-line."""
    folder = Path("/etc/apt")
    for path in sorted([*folder.glob("sources.list"), *folder.glob("sources.list.d/*")]):
        for line in path.read_text(errors="replace").splitlines():
            match = re.match(r"(?:URIs:|deb(?: \[[^]]*\])?)\s+(https?://\S+/debian)/?(\s|$)", line)
            if match:
                return match.group(1)
    return None


def mirror_answers() -> bool:
    """True if the mirror has the suite, so that the image could be built."""
    try:
        with urllib.request.urlopen(f"{mirror()}/dists/{SUITE}/InRelease", timeout=MIRROR_S_MAX):
            return True
    except (OSError, ValueError):
        return False


def is_built() -> bool:
    return (cache_folder() / f"debian-{_recipe()}.raw").exists()


def _recipe() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "duckctl-tests"


def debian_image() -> tuple[Path, Path]:
    """Disk and the private key that its root accepts; builds them if the cache has none."""
    recipe = _recipe()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    disk, key = folder / f"debian-{recipe}.raw", folder / f"debian-{recipe}.key"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not disk.exists():
            for old in folder.glob("debian-*"):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            _build(folder / f"debian-{recipe}.work", disk, key)
    return disk, key


def _build(work: Path, disk: Path, key: Path) -> None:
    work.mkdir()
    root = work / "root"
    try:
        _run(
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            SUITE,
            root,
            mirror(),
        )
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        _configure(root, key.with_suffix(".key.pub").read_text())
        _write_disk(work, root, work / "disk.raw")
        (work / "disk.raw").rename(disk)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _configure(root: Path, public_key: str) -> None:
    for folder in ("var/cache/apt", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    units = root / "etc/systemd/system"
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "systemd-networkd.service").symlink_to("/lib/systemd/system/systemd-networkd.service")
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    kernel, initrd = (next((root / "boot").glob(f"{kind}-*")) for kind in ("vmlinuz", "initrd.img"))
    files = {
        "root/.ssh/authorized_keys": public_key,
        "etc/hostname": "duckhost\n",
        "etc/fstab": "/dev/vda1 / ext4 noatime 0 1\n",
        "etc/default/grub": GRUB_DEFAULTS,
        "etc/systemd/network/05-management.network": MANAGEMENT_NETWORK,
        "boot/grub/grub.cfg": f"linux /boot/{kernel.name} root=/dev/vda1 ro console=ttyS0 quiet\n"
        f"initrd /boot/{initrd.name}\nboot\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "root/.ssh").chmod(0o700)
    shutil.copytree(root / "usr/lib/grub/i386-pc", root / "boot/grub/i386-pc")


def _write_disk(work: Path, root: Path, disk: Path) -> None:
    """MBR with GRUB's boot.img, core.img behind it, and one ext4 partition at 1 MiB."""
    modules = ("biosdisk", "part_msdos", "ext2", "normal", "linux", "serial", "terminal", "echo")
    prefix = "(hd0,msdos1)/boot/grub"
    _run(
        *("chroot", root, "grub-mkimage", "-O", "i386-pc", "-o", "/core.img", "-p", prefix),
        *modules,
    )
    core = (root / "core.img").read_bytes()
    (root / "core.img").unlink()
    if SECTOR_BYTES + len(core) > PARTITION_SECTOR * SECTOR_BYTES:
        raise RuntimeError(f"core.img of {len(core)} bytes reaches into the partition")
    partition = work / "partition"
    with partition.open("wb") as file:
        file.truncate(PARTITION_MIB << 20)
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-d", root, partition)
    record = bytearray((root / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:SECTOR_BYTES])
    sectors = (PARTITION_MIB << 20) // SECTOR_BYTES
    # One active Linux partition, without CHS addresses (MBR layout, offset 446).
    record[440:512] = bytes(72)
    record[446:462] = struct.pack(
        "<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", PARTITION_SECTOR, sectors
    )
    record[510:512] = b"\x55\xaa"
    with disk.open("wb") as file:
        file.write(record + core)
        file.truncate((PARTITION_SECTOR + sectors) * SECTOR_BYTES)
    _run(
        *("dd", f"if={partition}", f"of={disk}", "bs=1M", f"seek={PARTITION_SECTOR // 2048}"),
        *("conv=notrunc,sparse", "status=none"),
    )
