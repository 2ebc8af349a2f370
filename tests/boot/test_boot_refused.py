"""Changes that the boot service cannot serve: they are refused, and what was served goes on."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from boot_kit import make_fleet, make_plan
from netns_kit import Net, inside, ip, needs_namespaces
from service_kit import serving
from test_boot_service import MAC, fetch, file_of, fleet, net, tftp_get

from duckctl.boot.intents import Intents
from duckctl.boot.plan import BootPaths
from duckctl.boot.service import RETRY_S_MIN, BootServiceError, check_service
from duckctl.boot.watch import read_findings
from duckctl.image.manifest import image_dir
from duckctl.inventory import Fleet
from duckctl.process import wait_until

pytestmark = needs_namespaces("dnsmasq", "ip")
__all__ = ["fleet", "net"]

SECOND_MAC = "02:00:00:00:00:05"  # duck05, duckos, domain 1
IMAGE = "duckos/duckos.efi"


def set_second(fleet: Fleet, mode: str) -> None:
    """Changes how domain 1 is served; the file's time changes in any case."""
    head, tail = fleet.path.read_text().split("dom1:")
    old = tail.split("domain_boot: ")[1].split("}")[0]
    new = tail.replace(f"domain_boot: {old}", f"domain_boot: {mode}")
    fleet.path.write_text(f"{head}dom1:{new}")


def log_has(fleet: Fleet, text: str) -> bool:
    return wait_until(lambda: text in (fleet.path.parent / "serve.log").read_text(), 15)


def check_first_domain(net: Net) -> None:
    """DHCP, TFTP and HTTP of domain 0."""
    assert file_of(net, MAC) == IMAGE
    assert len(tftp_get(net, IMAGE)[0]) == 32_000
    assert fetch(net, "/boot.ipxe")[0] == 200


def no_address(net: Net) -> Callable[[], None]:
    ip("-n", net.host, "addr", "del", "198.18.1.1/24", "dev", "nic1")
    return lambda: ip("-n", net.host, "addr", "add", "198.18.1.1/24", "dev", "nic1")


def http_taken(net: Net) -> Callable[[], None]:
    return inside(net.host, lambda: socket.create_server(("198.18.1.1", 8080))).close


def boot_server_taken(net: Net) -> Callable[[], None]:
    def hold() -> socket.socket:
        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # shares the port with nobody
        held.bind(("", 4011))
        return held

    return inside(net.host, hold).close


@pytest.mark.slow
@pytest.mark.parametrize(
    ("obstacle", "mode", "said"),
    [
        (no_address, "dhcp", "no port of this machine has dom1's host address 198.18.1.1"),
        (http_taken, "dhcp", "cannot serve HTTP at 198.18.1.1:8080"),
        (boot_server_taken, "proxy", "dnsmasq does not start"),
    ],
)
def test_a_domain_that_cannot_be_served_stops_no_other(
    net: Net, fleet: Fleet, obstacle: Callable[[Net], Callable[[], None]], mode: str, said: str
) -> None:
    """Found before anything is stopped, at the HTTP server, at the DHCP process: domain 0 is served
    as before, told once; domain 1 is served soon after the obstacle is gone."""
    set_second(fleet, "off")
    take_away = obstacle(net)
    with serving(net, fleet) as process:
        set_second(fleet, mode)
        assert log_has(fleet, said)
        assert file_of(net, SECOND_MAC, "br1") == "silence"
        check_first_domain(net)
        findings = read_findings(BootPaths(fleet.path.parent / "boot").findings)
        assert [finding.kind for finding in findings] == ["refused"]
        time.sleep(RETRY_S_MIN)  # at least one more try
        take_away()
        assert wait_until(lambda: file_of(net, SECOND_MAC, "br1") == IMAGE, 4 * RETRY_S_MIN)
        check_first_domain(net)
        assert process.poll() is None
        findings = read_findings(BootPaths(fleet.path.parent / "boot").findings)
        assert [finding.kind for finding in findings] == ["refused"]


@pytest.mark.slow
def test_an_image_that_lacks_a_file_changes_nothing(net: Net, fleet: Fleet) -> None:
    """Its manifest is there, a file is not: told, and the copy that was served stays."""
    with serving(net, fleet) as process:
        boot = image_dir(fleet.path.parent, "duckos") / "duckos.img"
        data = boot.read_bytes()
        boot.unlink()
        set_second(fleet, "off")
        assert log_has(fleet, "cannot make the boot files")
        check_first_domain(net)
        assert file_of(net, SECOND_MAC, "br1") == IMAGE
        boot.write_bytes(data)
        set_second(fleet, "off")
        assert wait_until(lambda: file_of(net, SECOND_MAC, "br1") == "silence", 15)
        check_first_domain(net)
        assert process.poll() is None


@pytest.mark.slow
def test_nothing_listens_when_all_domains_are_off(net: Net, fleet: Fleet) -> None:
    """And all is served again when they are back."""
    text = fleet.path.read_text()
    host = Path("/run/netns") / net.host

    def listening() -> bool:
        sockets = subprocess.run(
            ["nsenter", f"--net={host}", "ss", "-Hlntu", "( sport = :69 or sport = :8080 )"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return bool(sockets.stdout.strip())

    with serving(net, fleet) as process:
        assert listening()
        fleet.path.write_text(text.replace("domain_boot: dhcp", "domain_boot: off"))
        assert wait_until(lambda: file_of(net, MAC) == "silence", 15)
        assert not listening()
        fleet.path.write_text(text)
        assert wait_until(lambda: file_of(net, MAC) == IMAGE, 15)
        check_first_domain(net)
        assert process.poll() is None


@pytest.mark.slow
def test_files_that_cannot_be_written_end_nothing(net: Net, fleet: Fleet) -> None:
    """As on a full disk: reservations and findings are refused, and all goes on."""
    paths = BootPaths(fleet.path.parent / "boot")
    intents = Intents(paths.intents)
    with serving(net, fleet) as process:
        paths.findings.mkdir()
        in_the_way = paths.root / f".hosts.{process.pid}"
        in_the_way.mkdir()
        intents.set_local("duck01")
        assert log_has(fleet, "what was served goes on")
        assert log_has(fleet, "a finding is not written down")
        check_first_domain(net)
        in_the_way.rmdir()
        paths.findings.rmdir()
        intents.set_local("duck02")
        assert wait_until(lambda: file_of(net, MAC) == "", 15)
        assert process.poll() is None


@pytest.mark.parametrize("name", ["a,b", 'a"b', "a #b", "a\\b", "a\tb"])
def test_a_folder_that_dnsmasq_cannot_read_is_refused(tmp_path: Path, name: str) -> None:
    """Before anything is started, with what to do."""
    plan = make_plan(make_fleet(tmp_path), tmp_path / name)
    with pytest.raises(BootServiceError, match="cannot serve from the folder") as caught:
        check_service(plan)
    assert "move the inventory" in caught.value.hint
