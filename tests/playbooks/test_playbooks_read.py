"""Playbooks parse; Ansible reads our inventories as duckctl does; templates give units and files
that systemd and GRUB take; people who use plain Ansible need nothing of duckctl."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from duckctl.inventory import load_inventory

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "playbooks"
BIN = Path(sys.executable).parent
VERBS = ["ducks", "host", "release", "verify"]

pytest.importorskip("ansible", reason="ansible-core is not installed")


def ansible(program: str, *words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(folder)}
    command = [str(BIN / program), *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_there_are_these_verbs() -> None:
    """A new playbook has to be added to the tests."""
    assert sorted(path.stem for path in PLAYBOOKS.glob("*.yml")) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_syntax(verb: str, tmp_path: Path) -> None:
    """Ansible can read each playbook with its roles, modules and filters."""
    done = ansible(
        *("ansible-playbook", "--syntax-check", "-i", ROOT / "inventory/rack32.yml"),
        PLAYBOOKS / f"{verb}.yml",
        folder=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["rack32", "lab"])
def test_ansible_reads_our_inventories(name: str, tmp_path: Path) -> None:
    """ansible-inventory gives each duck the same address, MAC, port and domain as duckctl."""
    path = ROOT / "inventory" / f"{name}.yml"
    done = ansible("ansible-inventory", "-i", path, "--list", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    fleet = load_inventory(path)
    for duck in fleet.ducks:
        variables = listed["_meta"]["hostvars"][duck.name]
        assert variables["duck_address"] == str(duck.address)
        assert variables.get("duck_mac") == duck.mac
        assert variables.get("duck_port", 7211) == duck.port
        assert variables["domain_subnet"] == str(duck.domain.subnet)
        assert variables.get("domain_mtu", 1500) == duck.domain.mtu
        assert duck.name in listed[duck.domain.name]["hosts"]
    hosts = listed.get("gpu_host", {}).get("hosts", [])
    assert hosts == ([fleet.host.name] if fleet.host else [])


def tasks_of(path: Path) -> list[dict[str, Any]]:
    """All tasks of a file, blocks opened."""
    found: list[dict[str, Any]] = []
    waiting = list(yaml.safe_load(path.read_text()) or [])
    while waiting:
        task = waiting.pop(0)
        found.append(task)
        waiting += task.get("block", []) + task.get("tasks", [])
    return found


TASK_FILES = sorted(PLAYBOOKS.glob("roles/*/tasks/*.yml")) + sorted(
    PLAYBOOKS.glob("roles/*/handlers/*.yml")
)
OWN_MODULES = {path.stem for path in (PLAYBOOKS / "library").glob("*.py")}
KEYWORDS = {
    *("name", "when", "loop", "loop_control", "register", "changed_when", "failed_when", "vars"),
    *("check_mode", "notify", "block", "until", "retries", "delay", "delegate_to", "become"),
}


@pytest.mark.parametrize("path", TASK_FILES, ids=lambda p: str(p.relative_to(PLAYBOOKS)))
def test_house_rules_of_tasks(path: Path) -> None:
    """Every task has a name and one module by its full name; commands say what they change; no
    task ignores its errors."""
    for task in tasks_of(path):
        modules = set(task) - KEYWORDS
        assert task.get("name"), task
        assert len(modules) == (0 if "block" in task else 1), modules
        for module in modules:
            assert module in OWN_MODULES or module.startswith("ansible.builtin."), module
            if module.split(".")[-1] in ("command", "shell"):
                assert "changed_when" in task, task["name"]
    assert "ignore_errors" not in path.read_text()


@pytest.mark.parametrize(
    "path", [p for p in TASK_FILES if p.parent.name == "tasks"], ids=lambda p: str(p)[-40:]
)
def test_t47_read_only_commands_run_in_check_mode(path: Path) -> None:
    """T47: a command whose result is used later also runs in check mode, or a later task would find
    no such variable; unless it is in a block that check mode leaves out."""
    text = path.read_text()
    for task in tasks_of(path):
        reads = any(key in task for key in ("ansible.builtin.command", "ansible.builtin.shell"))
        used = str(task.get("register", "-")) + "."
        if reads and task.get("changed_when") is False and text.count(used) > 0:
            restart_only = path.parts[-3] == "restart"
            assert task.get("check_mode") is False or restart_only, task["name"]


def test_roles_have_their_interface_in_defaults() -> None:
    """Each role but the one without settings has a defaults file whose variables carry its name."""
    for role in sorted((PLAYBOOKS / "roles").iterdir()):
        defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
        own = (role.name, "kernel_arguments", "host_restart", "duck_domain_list", "dpdk_enabled")
        wrong = [name for name in defaults if not name.startswith(own)]
        assert wrong == [], role.name


def test_playbooks_never_call_duckctl() -> None:
    """They use the inventory and built files; only the service's unit starts duckctl."""
    for path in [*PLAYBOOKS.rglob("*.yml"), *PLAYBOOKS.rglob("*.py")]:
        for line in path.read_text().splitlines():
            assert not re.search(r"(command|shell): .*\bduckctl\b|import duckctl", line), path


UNIT_VALUES = {
    **{"dpdk_bind": "serve", "dpdk_enabled": True, "serve_duckctl": "/bin/true"},
    **{"serve_model": "/models/a model", "serve_inventory": "/etc/duckctl/inventory.yml"},
    **{"serve_address": "127.0.0.1", "serve_port": 8000, "serve_options": ["--format", "fp8"]},
    **{"serve_user": "root", "pxe_folder": "/var/lib/duckctl/boot"},
    **{"pxe_http_command": "/bin/true --port 80", "duck_linux_program": "/bin/true"},
    **{"inventory_hostname": "d01", "duck_linux_address": "10.1.0.11", "duck_linux_port": 7211},
    **{"duck_linux_folder": "/etc/duckctl", "duck_linux_state": "/var/lib/duckd"},
    **{"duck_linux_cores": 3, "duck_linux_poll": "spin", "duck_linux_options": []},
    **{"duck_linux_interface": "enp1s0", "duck_linux_wake_on_lan": True},
    **{
        "duck_linux_eee_off": True,
        "duck_domain_list": [{"pci": "0000:41:00.0", "nic": "duck-dom1"}],
    },
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All units, and the host's sysctl file for a fleet of 501 ducks, as Ansible makes them."""
    folder = tmp_path_factory.mktemp("rendered")
    templates = [
        *PLAYBOOKS.glob("roles/*/templates/*.service.j2"),
        PLAYBOOKS / "roles/nic_domains/templates/sysctl.conf.j2",
    ]
    files = {
        str(folder / t.stem): f"{{{{ lookup('ansible.builtin.template', '{t}') }}}}"
        for t in templates
    }
    defaults = yaml.safe_load((PLAYBOOKS / "roles/nic_domains/defaults/main.yml").read_text())
    play: dict[str, Any] = {"hosts": "here", "gather_facts": False, "vars": defaults | UNIT_VALUES}
    play["tasks"] = [{"duck_files": {"files": files}}]
    for name in ("library", "filter_plugins"):
        (folder / name).symlink_to(PLAYBOOKS / name)
    (folder / "play.yml").write_text(json.dumps([play]))
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    ducks = {f"d{number}": None for number in range(501)}
    inventory = {"all": {"hosts": {"here": here}, "children": {"ducks": {"hosts": ducks}}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    words = ("-i", folder / "hosts.yml", folder / "play.yml")
    done = ansible("ansible-playbook", *words, folder=folder)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(rendered: Path) -> None:
    """systemd-analyze finds nothing wrong with the units that Ansible makes of the templates."""
    units = sorted(rendered.glob("*.service"))
    assert len(units) == 6
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in checked.stderr.splitlines() if str(rendered) in line]
    assert complaints == []
    serve = (rendered / "duck-serve.service").read_text()
    assert "serve '/models/a model' --inventory" in serve
    assert "BindsTo=duck-vfio.service" in serve
    # Answers under way may finish: one stop is one signal to duckctl, which tells the server.
    assert {"KillMode=mixed", "KillSignal=SIGINT"} <= set(serve.splitlines())


def test_t39_t40_ports_of_linux_ducks(rendered: Path) -> None:
    """T39, T40: Wake-on-LAN, which drivers turn off at each start, is armed at each start, and
    energy-efficient Ethernet is turned off; a port that has neither does not stop duckd."""
    unit = (rendered / "duck-port.service").read_text()
    assert "ExecStart=-/sbin/ethtool --change enp1s0 wol g" in unit
    assert "ExecStart=-/sbin/ethtool --set-eee enp1s0 eee off" in unit
    assert "WantedBy=multi-user.target" in unit


def test_t31_t37_kernel_settings(rendered: Path) -> None:
    """T31, T37: ARP settings stand for each port; more than 500 ducks enlarge the table."""
    lines = (rendered / "sysctl.conf").read_text().splitlines()[1:]
    assert lines == [
        "net.ipv4.conf.duck-dom1.arp_ignore = 1",
        "net.ipv4.conf.duck-dom1.arp_announce = 2",
        "net.ipv4.conf.duck-dom1.rp_filter = 2",
        "net.ipv4.neigh.default.gc_thresh1 = 4096",
        "net.ipv4.neigh.default.gc_thresh2 = 8192",
        "net.ipv4.neigh.default.gc_thresh3 = 16384",
    ]
