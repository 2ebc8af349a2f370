"""A qemu lab makes, reports and removes its own namespaces and processes, and nothing else."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_kit import PROCESSES, SHAPE, inside, lab_folder, namespaces_of, why_not
from processes import processes_naming

from duckctl import cli
from duckctl.commands import lab_vm
from duckctl.errors import ExitCode, UsageError
from duckctl.inventory import load_inventory
from duckctl.lab import machines
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import lab, machine, network
from duckctl.lab.vm.state import Namespace, Process, find, load, required, save
from duckctl.native import native_path
from duckctl.power.backend import Action, PowerState
from duckctl.power.ladder import power_ladder
from duckctl.process import boot_id, identify, wait_until

pytestmark = pytest.mark.skipif(bool(why_not(SHAPE)), reason=why_not(SHAPE))

MIXED = replace(SHAPE, ducks=2, kinds=("qemu", "process"), boot="pxe")
NO_IMAGE = str(Path(__file__))  # processes boot nothing
MAGIC_SENDER = """
import socket, sys
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sender.sendto(b"\\xff" * 6 + mac * 16, (sys.argv[2], 9))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    with lab_folder(tmp_path / "lab") as folder:
        yield folder


@pytest.fixture
def image(tmp_path: Path) -> str:
    """A config block and nothing that runs: these tests look at machines that never boot."""
    path = tmp_path / "empty.img"
    build = native_path("build-hash").read_bytes().strip()
    path.write_bytes(bytes(8192) + b"DUCKCFG1" + bytes(8192) + build)
    return str(path)


def run(folder: LabFolder, *arguments: str) -> int:
    command, *rest = arguments
    return cli.run(["lab", command, "--state-dir", str(folder.root), *rest])


def entering(folder: LabFolder, *command: str) -> list[str]:
    """`lab exec`, which becomes the command: in a process of its own."""
    words = (sys.executable, "-P", "-m", "duckctl", "lab", "exec")
    return [*words, "--state-dir", str(folder.root), "--", *command]


def enter(folder: LabFolder, *command: str) -> int:
    return subprocess.run(entering(folder, *command), timeout=60).returncode


def states(folder: LabFolder) -> dict[str, str]:
    state = required(folder)
    return {duck.name: lab.state_of(folder, state, duck) for duck in state.ducks}


@pytest.mark.slow
def test_up_status_exec_down(
    folder: LabFolder, image: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One guest and one process on one bridge: up, seen, reachable from the host, gone."""
    up = ["--ducks", "2", "--backend", "qemu,process", "--memory", "64", "--image", image]
    assert run(folder, "up", *up, "--no-wait") == ExitCode.OK
    state = required(folder)
    assert namespaces_of(state.lab_id) == {n.name for n in state.namespaces}
    capfd.readouterr()
    assert run(folder, "status", "--json") == ExitCode.OK
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert [(d["name"], d["kind"], d["state"], d["firmware"]) for d in document["ducks"]] == [
        ("d01", "qemu", "on", "bios"),
        ("d02", "process", "on", None),
    ]
    inventory = ["--inventory", str(folder.inventory)]
    health = [sys.executable, "-P", "-m", "duckctl", "health", "--timeout", "1", *inventory]
    assert enter(folder, *health) == ExitCode.PARTIAL  # d01 has nothing to boot
    assert enter(folder, "sh", "-c", "exit 7") == 7
    assert run(folder, "up", *up, "--no-wait") == ExitCode.OK
    again = required(folder)
    assert (again.lab_id, set(again.processes)) == (state.lab_id, set(state.processes))
    assert run(folder, "down") == ExitCode.OK
    assert namespaces_of(state.lab_id) == set()
    assert processes_naming(str(folder.root)) == []
    assert run(folder, "status") == ExitCode.UNREACHABLE


@pytest.mark.slow
def test_switches(folder: LabFolder, image: str) -> None:
    """Hang, resume, reset, power cut, magic packet: each leaves the machine as it says."""
    lab.up(folder, MIXED, image)
    assert states(folder) == {"d01": "on", "d02": "on"}
    first = required(folder).running("duck d01")
    lab.hang(folder, ["d01", "d02"])
    assert states(folder) == {"d01": "hung", "d02": "hung"}
    assert machines.is_on(folder, "d01")
    lab.resume(folder, ["d02"])
    machines.cycle(folder, "d01")
    assert states(folder) == {"d01": "on", "d02": "on"}
    second = required(folder).running("duck d01")
    assert first != second
    lab.reset(folder, ["d01"])
    assert required(folder).running("duck d01") == second
    with pytest.raises(UsageError, match="no reset button"):
        lab.reset(folder, ["d02"])
    assert run(folder, "kill", "d01") == ExitCode.OK
    assert run(folder, "kill", "d01") == ExitCode.FAILURE
    assert states(folder) == {"d01": "off", "d02": "on"}
    duck = required(folder).duck("d01")
    sender = [sys.executable, "-c", MAGIC_SENDER, duck.mac, "198.18.1.255"]
    assert enter(folder, *sender) == ExitCode.OK
    assert wait_until(lambda: states(folder)["d01"] == "on", 10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.slow
def test_a_signal_to_exec_reaches_its_command(folder: LabFolder, number: signal.Signals) -> None:
    """Whatever ends `lab exec` ends what it runs; a broken pipe ends it too."""
    lab.up(folder, PROCESSES, NO_IMAGE)
    script = "trap 'exit 7' TERM; grep SigIgn /proc/self/status; echo ready; read -r line"
    mark = f"shell of {folder.root}"
    command = entering(folder, "sh", "-c", script, mark)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if nohup has started this process
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        try:
            assert processes_naming(mark) != []
            process.send_signal(number)
            assert process.wait(20) == (7 if number == signal.SIGTERM else -number)
            assert processes_naming(mark) == []  # though its stdin is open still
        finally:
            process.kill()
    ignored = int(said[0].split()[1], 16)
    assert (ignored & 1 << signal.SIGPIPE - 1, said[1]) == (0, "ready\n")


def test_a_command_that_is_not_there_is_named(
    folder: LabFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """Outside the lab's network iproute2 names it, inside we do, with this process unharmed."""
    lab.up(folder, PROCESSES, NO_IMAGE)
    assert enter(folder, "no-such-program") != ExitCode.OK
    assert "no-such-program" in capfd.readouterr().err
    before = [signal.getsignal(number) for number in signal.Signals]
    with inside(required(folder)), pytest.raises(UsageError, match="cannot run no-such-program"):
        lab_vm.execute(folder, ["no-such-program"])
    assert [signal.getsignal(number) for number in signal.Signals] == before


def test_another_shape_is_refused(folder: LabFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A lab that is up is not changed into another, nor into one of the other backend."""
    lab.up(folder, PROCESSES, NO_IMAGE)
    with pytest.raises(UsageError, match="another shape is up"):
        lab.up(folder, replace(PROCESSES, ducks=2), NO_IMAGE)
    assert run(folder, "up", "--ducks", "1") == ExitCode.USAGE
    assert "a qemu lab is up" in capsys.readouterr().err


def test_a_missing_image_leaves_nothing(folder: LabFolder) -> None:
    """An `up` that fails half-way removes what it has made."""
    with pytest.raises(LabError, match="no image file"):
        lab.up(folder, SHAPE, "/no/such/file")
    assert load(folder) is None
    assert processes_naming(str(folder.root)) == []


@pytest.mark.slow
def test_a_broken_machine_is_named_with_its_words(
    folder: LabFolder, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU that ends at once, here for want of its firmware, is reported with what it said."""
    monkeypatch.setattr(machine, "OVMF_CODE", Path("/no/such/firmware.fd"))
    with pytest.raises(LabError, match=r"d01 ended at once(.|\n)*/no/such/firmware\.fd"):
        lab.require_on(folder, lab.up(folder, replace(SHAPE, firmware=("uefi",)), image), ["d01"])
    assert states(folder) == {"d01": "off"}


def test_only_recorded_namespaces_are_removed(folder: LabFolder) -> None:
    """A namespace of a recorded name that is another one is left alone."""
    name = f"duck-test-{boot_id()[:4]}-{time.monotonic_ns() % 100000}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        lab.up(folder, PROCESSES, NO_IMAGE)
        state = required(folder)
        foreign = Namespace(name, inode=1)
        save(folder, replace(state, namespaces=(*state.namespaces, foreign)))
        lab.down(folder)
        assert Path(f"/run/netns/{name}").exists()
        fresh = Namespace(name)  # never noted: ours only while it is empty
        assert network.is_own(fresh)
        subprocess.run(
            ["ip", "-n", name, "link", "add", "v1", "type", "veth", "peer", "name", "v2"],
            check=True,
        )
        assert not network.is_own(fresh)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_a_foreign_process_under_a_recorded_pid_is_left_alone(folder: LabFolder) -> None:
    """Start time and arguments decide, not the pid."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        identity = identify(sleeper.pid)
        assert identity is not None
        record = Process("duck d01", ("no such word",), identity.pid, identity.start_ticks)
        assert find(record, boot_id()) is None
        record = Process("duck d01", ("-c",), identity.pid, identity.start_ticks + 1)
        assert find(record, boot_id()) is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_user_in_the_labs_network_is_warned_of_not_killed(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lab down` ends its own processes only; another's shell in the network stays."""
    lab.up(folder, PROCESSES, NO_IMAGE)
    host = required(folder).namespace("host")
    guest = subprocess.Popen(network.inside(host, ["sleep", "60"]))
    try:
        assert wait_until(lambda: str(guest.pid) in pids_in(host), 5)
        assert run(folder, "down") == ExitCode.OK
        assert guest.poll() is None
        assert str(guest.pid) in capsys.readouterr().err
    finally:
        guest.kill()
        guest.wait()


def pids_in(namespace: str) -> list[str]:
    return network.run_ip(["netns", "pids", namespace]).split()


def test_a_half_made_namespace_is_cleared_away(folder: LabFolder) -> None:
    """`ip netns add` that was killed leaves an empty file, which is no namespace."""
    lab.up(folder, PROCESSES, NO_IMAGE)
    state = required(folder)
    half = Namespace(state.namespace("half"))
    half.path.touch(mode=0o444)
    save(folder, replace(state, namespaces=(*state.namespaces, half)))
    lab.down(folder)
    assert not half.path.exists()


@pytest.mark.slow
def test_killed_at_any_point_it_is_cleaned_up(folder: LabFolder, image: str) -> None:
    """kill -9 of `lab up` at ten points: `lab down` finds everything; so does the next `lab up`."""
    up = ["up", "--ducks", "3", "--backend", "qemu,process", "--memory", "64", "--image", image]
    arguments = [sys.executable, "-P", "-m", "duckctl", "lab", *up, "--no-wait"]
    for step in range(10):
        process = subprocess.Popen(
            [*arguments, "--state-dir", str(folder.root)], stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        made = wait_until(lambda: folder.state_file.exists(), 20)
        time.sleep(step * 0.06)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert made
        lab_id = required(folder).lab_id
        if step % 2:
            lab.down(folder)
            assert namespaces_of(lab_id) == set(), f"killed at step {step}"
            assert processes_naming(str(folder.root)) == [], f"killed at step {step}"
        else:
            assert run(folder, *up, "--no-wait") == ExitCode.OK
            assert set(states(folder).values()) == {"on"}
            lab_ids = {lab_id, required(folder).lab_id}
            lab.down(folder)
            left = set().union(*map(namespaces_of, lab_ids))
            assert left == set(), f"killed at step {step}, then up"


def test_an_interrupted_up_leaves_nothing(folder: LabFolder, image: str) -> None:
    """SIGINT while the lab is made: exit 130, no namespace, no process."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "duckctl", "lab", "up", "--backend", "process,qemu"),
            *("--ducks", "6", "--image", image, "--no-wait", "--state-dir", str(folder.root)),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: folder.state_file.exists() or process.poll() is not None, 20)
    lab_id = required(folder).lab_id
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    if process.returncode == ExitCode.OK:
        return  # it was faster than the signal: an ordinary lab, which the fixture ends
    assert process.returncode == ExitCode.INTERRUPTED, said
    assert load(folder) is None
    assert namespaces_of(lab_id) == set()
    assert processes_naming(str(folder.root)) == []


@pytest.mark.slow
def test_the_filter_lets_only_magic_packets_through(folder: LabFolder) -> None:
    """Frames to other ports never reach the listener; raw EtherType 0842 does."""
    lab.up(folder, PROCESSES, NO_IMAGE)
    state = required(folder)
    lab.switch_off(folder, ["d01"])
    mac = bytes.fromhex(state.ducks[0].mac.replace(":", ""))
    raw = (
        "import socket\n"
        "with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:\n"
        "    s.bind(('nic1', 0))\n"
        "    head = bytes.fromhex('ffffffffffff' '020000000001' '0842')\n"
        f"    s.send(head + b'\\xff' * 6 + {mac!r} * 16)\n"
    )
    wrong_port = MAGIC_SENDER.replace(", 9))", ", 10))")
    wrong = [sys.executable, "-c", wrong_port, state.ducks[0].mac, "198.18.1.255"]
    assert enter(folder, *wrong) == ExitCode.OK
    assert not wait_until(lambda: states(folder)["d01"] == "on", 0.5)
    assert enter(folder, sys.executable, "-c", raw) == ExitCode.OK
    assert wait_until(lambda: states(folder)["d01"] == "on", 10)


@pytest.mark.skipif(shutil.which("ipmitool") is None, reason="package ipmitool is missing")
@pytest.mark.slow
def test_board_controllers(folder: LabFolder, image: str) -> None:
    """The fleet's own IPMI backend switches each guest by its own controller."""
    lab.up(folder, replace(SHAPE, ducks=2, boot="pxe", bmc=True), image)
    state = required(folder)
    fleet = load_inventory(folder.inventory)
    with inside(state):
        second = next(b for b in power_ladder(fleet.ducks[1], fleet) if b.name == "ipmi")
        assert second.state() is PowerState.ON
        second.act(Action.OFF)
        assert states(folder) == {"d01": "on", "d02": "off"}
        assert second.state() is PowerState.OFF
        second.act(Action.ON)
        assert states(folder) == {"d01": "on", "d02": "on"}
