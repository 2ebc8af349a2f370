"""A setup that ends between its files and what reads them: the next run finishes it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
DNSMASQ = Path("/usr/sbin/dnsmasq")

pytest.importorskip("ansible", reason="ansible-core is not installed")
pytestmark = pytest.mark.slow

# Every program that roles call. It notes the call, and fails if that has the text of `broken`.
PROGRAM = """\
#!/bin/sh
call="${0##*/} $*"
echo "$call" >> FOLDER/calls
if [ -s FOLDER/broken ]; then
    case "$call" in *"$(cat FOLDER/broken)"*) echo "no space left" >&2; exit 1;; esac
fi
case "$call" in
update-grub*)
    for file in FOLDER/grub.d/*.cfg; do [ -e "$file" ] && . "$file"; done
    printf '\\tlinux /vmlinuz root=/dev/vda1 ro %s quiet\\n' "$GRUB_CMDLINE_LINUX" > FOLDER/menu ;;
*is-enabled*) echo enabled ;;
*is-active*) echo active ;;
*show*) printf 'Id=x.service\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\n' ;;
esac
"""
PROGRAMS = ["update-grub", "systemctl", "networkctl", "ip", "udevadm", "ss", "dnsmasq"]
NODE = """\
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={"domains": {"type": "list"}, "address": {}})
system = {"systemd": True, "machine": "x86_64"}
module.exit_json(system=system, address_interfaces=["lo"], cpus=[0, 1])
"""


@dataclass(frozen=True)
class Run:
    """What a run of a role came to. ``calls``: programs that it called to change something."""

    failed: bool
    changed: int
    calls: list[str]


class Host:
    """A role on this machine with all its files below a folder, and programs that only pretend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "library", "grub.d"):
            (folder / name).mkdir()
        for name in PROGRAMS:
            path = folder / "bin" / name
            path.write_text(PROGRAM.replace("FOLDER", str(folder)))
            path.chmod(0o755)
        for path in (PLAYBOOKS / "library").glob("*.py"):
            (folder / "library" / path.name).symlink_to(path)
        (folder / "library/duck_host.py").unlink()
        (folder / "library/duck_host.py").write_text(NODE)
        here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        groups = {"all": {"hosts": {"here": here}, "children": {"ducks": {"hosts": {"d01": None}}}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(groups))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def run(self, role: str, broken: str = "", check: bool = False, **variables: Any) -> Run:
        """``broken``: a call with that text fails."""
        play = {"hosts": "here", "gather_facts": False, "vars": variables, "roles": [role]}
        (self.folder / "play.yml").write_text(json.dumps([play]))
        (self.folder / "broken").write_text(broken)
        (self.folder / "calls").write_text("")
        environment = os.environ | {
            **{"LC_ALL": "C.UTF-8", "PATH": f"{self.path('bin')}:/usr/bin:/bin"},
            **{"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": self.path("ansible")},
            "ANSIBLE_LIBRARY": self.path("library"),
            "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles"),
            "ANSIBLE_FILTER_PLUGINS": str(PLAYBOOKS / "filter_plugins"),
            "ANSIBLE_MODULE_UTILS": str(PLAYBOOKS / "module_utils"),
        }
        words = [str(Path(sys.executable).parent / "ansible-playbook"), self.path("play.yml")]
        words += ["-i", self.path("hosts.yml"), *(["--check"] if check else [])]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        recap = re.search(r"^here .* changed=(\d+) .* failed=(\d+)", done.stdout, re.MULTILINE)
        assert recap is not None, done.stdout + done.stderr
        assert broken or check or recap[2] == "0", done.stdout
        calls = (self.folder / "calls").read_text().splitlines()
        reads = re.compile(r"systemctl.* (show|is-\w+) |systemctl (show|is-)|ss |dnsmasq --test")
        acts = [call for call in calls if not reads.match(call)]
        return Run(recap[2] != "0", int(recap[1]), acts)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def isolation(host: Host, cpus: str = "2-3") -> dict[str, Any]:
    return {
        "preflight_host": {"cpus": [0, 1, 2, 3], "cmdline": "quiet"},
        **{"dpdk_enabled": False, "duck_domain_list": [], "cpu_isolation_cpus": cpus},
        "cpu_isolation_grub": host.path("grub.d/60-duckctl.cfg"),
        "cpu_isolation_menu": host.path("menu"),
        "cpu_isolation_irqbalance": host.path("irqbalance.d/duckctl.conf"),
        "cpu_isolation_pending": host.path("pending"),
    }


IRQBALANCE = "systemctl try-restart irqbalance.service"


def test_a_menu_that_was_not_written_is_written_by_the_next_run(host: Host) -> None:
    """/boot is full in the first run: the second one writes GRUB's menu, although the file of
    arguments is as it has to be; a third one changes nothing. The same when they are taken away."""
    role = isolation(host)
    assert host.run("cpu_isolation", "update-grub", **role).failed
    checked = host.run("cpu_isolation", check=True, **role)
    assert (checked.failed, checked.calls) == (False, [])
    second = host.run("cpu_isolation", **role)
    assert second.calls == ["update-grub ", "systemctl daemon-reload", IRQBALANCE]
    assert "isolcpus=2-3" in Path(host.path("menu")).read_text()
    third = host.run("cpu_isolation", **role)
    assert (third.changed, third.calls) == (0, [])

    none = isolation(host, "")
    assert host.run("cpu_isolation", "update-grub", **none).failed
    assert "update-grub " in host.run("cpu_isolation", **none).calls
    assert "isolcpus" not in Path(host.path("menu")).read_text()
    assert host.run("cpu_isolation", **none).changed == 0


def test_a_run_that_ends_between_two_files(host: Host) -> None:
    """The second file cannot be written: the first counts as not read. A menu without the
    arguments, whoever made it, is written again."""
    role = isolation(host)
    Path(host.path("irqbalance.d")).write_text("in the way")
    assert host.run("cpu_isolation", "no call at all", **role).failed
    Path(host.path("irqbalance.d")).unlink()
    assert "update-grub " in host.run("cpu_isolation", **role).calls
    Path(host.path("menu")).write_text("\tlinux /vmlinuz root=/dev/vda1 ro quiet\n")
    again = host.run("cpu_isolation", **role)
    assert (again.changed, again.calls) == (1, ["update-grub "])
    assert host.run("cpu_isolation", **role).changed == 0


def test_networkd_reads_files_of_a_run_that_failed(host: Host) -> None:
    """A port that cannot be renamed ends the first run, after networkd has read the files; the next
    run has them read again, and the one after changes nothing. Files with a name that the port had
    before are gone; those of another port, of another inventory, stay."""
    port = {"name": "domain1", "pci": "0000:41:00.0", "mac": "", "nic": "duck-none", "mtu": 1500}
    port |= {"host_address": "10.1.0.1", "prefix": 24}
    role: dict[str, Any] = {
        **{"duck_domain_list": [port], "nic_domains_folder": host.path("network")},
        **{"nic_domains_sysctl": host.path("sysctl.conf"), "nic_domains_arp": {}},
        "nic_domains_pending": host.path("pending"),
    }

    def run(interface: str, broken: str = "") -> Run:
        found = {"ports": [{"domain": "domain1", "interface": interface}]}
        return host.run("nic_domains", broken, preflight_host=found, **role)

    folder = Path(host.path("network"))
    folder.mkdir()
    header = "# {}: written by duckctl's role nic_domains\n[Match]\n"
    for name, path in (("old", "0000:41:00.0"), ("other", "0000:41:00.1")):
        link, network = (folder / f"20-duck-{name}.{kind}" for kind in ("link", "network"))
        link.write_text(header.format(name) + f"Path=pci-{path}\n\n[Link]\nName=duck-{name}\n")
        network.write_text(header.format(name) + f"Name=duck-{name}\n")
    (folder / "20-lan.link").write_text("# by hand\n[Match]\nPath=pci-0000:41:00.0\n")
    first = run("eno1", "ip link set dev eno1 down")
    assert (first.failed, first.calls) == (True, ["networkctl reload", "ip link set dev eno1 down"])
    others = ["20-duck-other.link", "20-duck-other.network", "20-lan.link"]
    names = ["20-duck-none.link", "20-duck-none.network", *others]
    assert sorted(path.name for path in folder.iterdir()) == names
    second = run("duck-none")
    assert set(second.calls) == {"networkctl reload"}
    third = run("duck-none")
    assert (third.changed, third.calls) == (0, [])


def restarts(run: Run) -> list[str]:
    return [call.split()[-1] for call in run.calls if " restart " in call]


@pytest.mark.skipif(not DNSMASQ.exists(), reason="not installed: dnsmasq (the role would)")
def test_dnsmasq_is_restarted_after_a_run_that_failed(host: Host) -> None:
    """The files are copied and the restart fails: the next run restarts, the one after does not.
    Files that are served from where they are generated change without a copy."""
    folder = Path(host.path("boot"))
    source = Path(host.path("generated"))
    (source / "tftp").mkdir(parents=True)
    (source / "hosts").write_text("")
    (source / "dnsmasq.conf").write_text(
        f"port=0\ntftp-root={folder}/tftp\ndhcp-hostsfile={folder}/hosts\n"
    )
    role: dict[str, Any] = {
        **{"pxe_source": str(source), "pxe_folder": str(folder), "pxe_ports": []},
        "pxe_files": {host.path("units/duck-dnsmasq.service"): "[Service]\nExecStart=/bin/true\n"},
        "pxe_started": host.path("started"),
    }
    assert not host.run("pxe", check=True, **role).calls
    assert host.run("pxe", "systemctl restart", **role).failed
    second = host.run("pxe", **role)
    assert restarts(second) == ["duck-dnsmasq.service"]
    assert "systemctl daemon-reload" in second.calls
    third = host.run("pxe", **role)
    assert (third.changed, third.calls) == (0, [])

    in_place = role | {"pxe_source": str(folder)}
    (folder / "hosts").write_text("02:00:00:00:00:01,10.1.0.11\n")
    assert restarts(host.run("pxe", **in_place)) == ["duck-dnsmasq.service"]
    assert host.run("pxe", **in_place).changed == 0


def duckd(host: Host) -> dict[str, Any]:
    shutil.copy("/bin/true", host.path("built"))
    Path(host.path("FLEET.pub")).write_text(f"duck-p256-public:04{'ab' * 64}\n")
    return {
        **{"duck_linux_duckd": host.path("built"), "duck_linux_address": "127.0.0.1"},
        **{"duck_linux_fleet_public": host.path("FLEET.pub")},
        **{"duck_linux_program": host.path("duckd"), "duck_linux_folder": host.path("etc")},
        **{"duck_linux_state": host.path("state"), "duck_linux_started": host.path("started")},
        "duck_linux_files": {host.path("units/duckd.service"): "[Service]\nExecStart=/bin/true\n"},
    }


def test_a_private_key_gets_to_no_duck(host: Host) -> None:
    """The fleet's private key in place of the public one is refused before anything is written."""
    role = duckd(host)
    Path(host.path("FLEET.pub")).write_text(f"duck-p256-private:{'ab' * 32}\n")
    assert host.run("duck_linux", "no call at all", **role).failed
    assert not Path(host.path("etc")).exists()


def test_duckd_is_restarted_after_a_run_that_failed(host: Host) -> None:
    """A new duckd is installed and the restart fails: the next run restarts it."""
    role = duckd(host)
    assert not host.run("duck_linux", check=True, **role).calls
    assert not host.run("duck_linux", **role).failed
    shutil.copy("/bin/false", host.path("built"))
    assert host.run("duck_linux", "restart duckd", **role).failed
    assert restarts(host.run("duck_linux", **role)) == ["duck-port.service", "duckd.service"]
    last = host.run("duck_linux", **role)
    assert (last.changed, last.calls) == (0, [])
