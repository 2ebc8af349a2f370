"""The boot service in the foreground: dnsmasq, HTTP, intents, loop detector; one per fleet.

Every ``STEP_S`` it looks whether the inventory, the images or the intents have changed. dnsmasq
does DHCP in one process, which is started anew for a change (its lease file keeps the leases), and
TFTP in another, whose transfers go on meanwhile. Both end with the service; what a killed one
leaves behind, the next one ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from duckctl.boot.dnsmasq import render_config, render_hosts, render_tftp
from duckctl.boot.events import BootEvent
from duckctl.boot.follow import LogReader
from duckctl.boot.http_server import BootServer
from duckctl.boot.intents import Intents
from duckctl.boot.leases import pool_sizes, pool_use, read_leases
from duckctl.boot.plan import BootPlan, plan_boot
from duckctl.boot.ports import port_conflicts
from duckctl.boot.tree import sync_tftp
from duckctl.boot.watch import BootWatch, Finding, WatchLimits
from duckctl.errors import DuckError, UsageError
from duckctl.inventory import Domain, load_inventory
from duckctl.process import (
    command_line,
    die_with_parent,
    end,
    identify,
    tail,
    wait_until,
)

STEP_S = 0.25
POOL_CHECK_S = 5.0
RESTART_S_MIN = (
    2.0  # between two starts of dnsmasq for changes; what comes meanwhile is taken over then
)
RETRY_S_MIN, RETRY_S_MAX = 10.0, 300.0  # of a refused change: it doubles; DHCP may pause each time
START_S = 10.0
STOP_S = 5.0
LOG_BYTES_MAX = 64 << 20  # of each log; then it becomes <name>.1
# In a path, dnsmasq's configuration reads them as something else.
NO_PATH = re.compile(r'[,"#\\\x00-\x1f\x7f]')


class BootServiceError(DuckError):
    """The boot service cannot start or go on."""


class DnsmasqProcess:
    """One dnsmasq."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_started(self) -> bool:
        """It was started and not stopped; ``check`` tells when it has ended by itself."""
        return self._process is not None

    def start(self, config: Path, text: str, pid_file: Path) -> None:
        """Writes the configuration and waits until dnsmasq serves."""
        _write(config, text)
        end_left_over(config, pid_file)
        said = config.with_suffix(".err")
        with said.open("wb") as errors:
            process = subprocess.Popen(
                ["dnsmasq", "--keep-in-foreground", f"--conf-file={config}"],
                env={**os.environ, "TZ": "UTC"},  # of its log: any reader knows what it means
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._process = process
        wait_until(lambda: pid_file.exists() or process.poll() is not None, START_S)
        if process.poll() is not None:
            self._process = None
            raise BootServiceError(
                f"dnsmasq does not start: {tail(said).strip()}", f"its configuration: {config}"
            )

    def check(self, log: Path) -> None:
        """Raises BootServiceError when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise BootServiceError(
                f"dnsmasq has ended with code {self._process.returncode}; the end of its log:\n"
                + tail(log)
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_left_over(config: Path, pid_file: Path) -> None:
    """Ends the dnsmasq of a service that was killed: it changes its rights, so the kernel does not
    end it with its parent. Only a process that runs with this very configuration is touched."""
    try:
        found = identify(int(pid_file.read_text(encoding="ascii")))
    except (OSError, ValueError):
        found = None
    if found is not None and f"--conf-file={config}" in command_line(found.pid):
        end([found], STOP_S)
    pid_file.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Replaces a file whole; one that has this text already needs no room on a full disk."""
    with suppress(OSError, ValueError):
        if path.read_text(encoding="utf-8") == text:
            return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)


@dataclass(frozen=True)
class _Seen:
    """Times of change of everything that the plan was made from."""

    inventory: int
    intents: int
    images: tuple[tuple[str, int], ...]


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def check_service(plan: BootPlan) -> None:
    """Raises BootServiceError when the service could not run: paths, programs, rights, ports."""
    if all(plan.mode_of(domain) == "off" for domain in plan.fleet.domains):
        raise UsageError(
            f"no domain of {plan.fleet.name} is served: all are on loopback or domain_boot: off"
        )
    if found := NO_PATH.search(str(plan.paths.root)):
        raise BootServiceError(
            f"dnsmasq cannot serve from the folder {str(plan.paths.root)!r}: {found[0]!r} means "
            "something else to it",
            'move the inventory to a folder without , " # \\ and control characters in its path',
        )
    if shutil.which("dnsmasq") is None:
        raise BootServiceError("dnsmasq is not installed", "sudo apt-get install dnsmasq-base")
    conflicts = port_conflicts(plan)
    if conflicts:
        lines = "\n  ".join(str(owner) for owner in conflicts)
        raise BootServiceError(
            f"ports of network boot are in use:\n  {lines}",
            "stop that service, or let it be the DHCP server and set domain_boot: proxy (port 67 "
            "of another machine), or choose another HTTP port: --http-port",
        )
    if os.geteuid() != 0:
        raise BootServiceError("network boot needs root (ports 67 and 69)", "run it with sudo")


def _served(plan: BootPlan) -> list[Domain]:
    return [domain for domain in plan.fleet.domains if plan.mode_of(domain) != "off"]


def _check_addresses(plan: BootPlan) -> None:
    """Raises BootServiceError when this machine lacks a served domain's address: known before
    anything is stopped."""
    for domain in _served(plan):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as place:
            try:
                place.bind((str(domain.host_address), 0))
            except OSError as error:
                raise BootServiceError(
                    f"no port of this machine has {domain.name}'s host address "
                    f"{domain.host_address}: {error.strerror}",
                    "see which it has: ip address",
                ) from error


@dataclass
class _Refused:
    """The change that is not served, if there is one."""

    text: str = ""
    due_at: float | None = None  # on the monotonic clock: when it is tried again
    again_s: float = RETRY_S_MIN

    def is_due(self) -> bool:
        return self.due_at is not None and time.monotonic() >= self.due_at

    def is_news(self, text: str) -> bool:
        """Sets the time of the next try; whether the reason was not told yet."""
        before, self.text = self.text, text
        self.due_at = time.monotonic() + self.again_s
        self.again_s = min(self.again_s * 2, RETRY_S_MAX)
        return text != before


class BootService:
    """``run`` blocks until SIGTERM, SIGINT or ``stop``; ``on_event`` and ``on_finding`` are told
    what happens."""

    def __init__(
        self,
        plan: BootPlan,
        on_event: Callable[[BootEvent], None] = lambda event: None,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        limits: WatchLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._dhcp_plan = plan  # what the DHCP process runs with: older than the plan for a moment
        self._on_event, self._on_finding = on_event, on_finding
        self._limits = limits or WatchLimits()
        self._clock = clock
        self._watch = BootWatch(self._limits, pool_sizes(plan))
        self._server = BootServer(self.plan, clock)
        self._dhcp, self._tftp = DnsmasqProcess(), DnsmasqProcess()
        self._running = ("", "")  # configuration and reservations of the DHCP process
        self._started_at = 0.0
        self._is_stale = False  # the plan has changed since they were compared
        self._refused, self._unread = _Refused(), _Refused()
        self._lock: IO[str] | None = None
        self._reader = LogReader(plan.fleet, plan.paths)
        self._seen = self._look()
        self._pool_checked = 0.0
        self._stop = threading.Event()

    def plan(self) -> BootPlan:
        """The plan as it is now."""
        return self._plan

    def stop(self) -> None:
        """Makes ``run`` end; may be called from any thread."""
        self._stop.set()

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves until it is told to stop. Raises BootServiceError when dnsmasq ends."""
        with self._signals():
            try:
                self.start()
                on_ready()
                while not self._stop.wait(STEP_S):
                    self.step()
            finally:
                self.close()

    def start(self) -> None:
        """Writes the files and starts both servers."""
        paths = self._plan.paths
        paths.root.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        end_left_over(paths.config, paths.pid_file)
        end_left_over(paths.tftp_config, paths.tftp_pid_file)
        check_service(self._plan)
        self._reader.skip()
        sync_tftp(self._plan)
        self._start_tftp()
        self._start_dnsmasq(*self._texts())
        self._start_server()

    def step(self) -> None:
        """One look at the files, the logs and dnsmasq."""
        self._dhcp.check(self._plan.paths.dnsmasq_log)
        self._tftp.check(self._plan.paths.dnsmasq_log)
        seen, hellos = self._news()
        if seen != self._seen:
            self._seen = seen
            self._refused = _Refused()
            self._replan()
        elif self._refused.is_due():
            self._replan()
        macs = {duck.name: duck.mac for duck in self._plan.fleet.ducks}
        for name in hellos:
            self._watch.hello(macs.get(name) or "")
        for event in self._reader.read():
            self._on_event(event)
            for finding in self._watch.event(event):
                self._act(finding)
        self._restart_if_changed()
        self._check_pools()
        self._rotate()

    def close(self) -> None:
        """Ends both servers; harmless when they do not run."""
        self._server.stop()
        self._dhcp.stop()
        self._tftp.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ---- parts --------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end ``run``; whoever had them before has them after."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(number: int, frame: FrameType | None) -> None:
            self._stop.set()

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_lock(self) -> None:
        self._lock = (self._plan.paths.root / ".service.lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read(20).strip() or "unknown"
            raise BootServiceError(
                f"the boot service of {self._plan.fleet.name} runs already (pid {holder})",
                "stop that one first",
            ) from None
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def _news(self) -> tuple[_Seen, list[str]]:
        """What the files are now, and who said hello. Where they cannot be read (no descriptor is
        free), nothing is new; that is told once."""
        try:
            found = self._look(), Intents(self._plan.paths.intents).take_hellos()
        except OSError as error:
            if self._unread.is_news(str(error)):
                self._tell(f"what was served goes on; changes cannot be looked for: {error}")
            return self._seen, []
        self._unread = _Refused()
        return found

    def _look(self) -> _Seen:
        paths, fleet = self._plan.paths, self._plan.fleet
        folder = paths.root.parent / "images"
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        images = tuple((name, _changed_at(folder / name / "manifest.json")) for name in names)
        return _Seen(_changed_at(fleet.path), _changed_at(paths.intents), images)

    def _replan(self) -> None:
        """Takes over what changed. What cannot be read or served leaves everything as it was."""
        before = self._plan
        self._refused.due_at = None
        try:
            plan = plan_boot(load_inventory(before.fleet.path), before.policy)
            if plan.fleet.domains != before.fleet.domains:
                _check_addresses(plan)
            sync_tftp(plan)
            self._take_over(plan)
        except (DuckError, OSError) as error:
            self._go_back(before)
            self._refuse(error)

    def _take_over(self, plan: BootPlan) -> None:
        """From now on this is the plan; TFTP and HTTP are started anew if the domains differ."""
        before, self._plan = self._plan, plan
        self._is_stale = True
        self._reader = LogReader(plan.fleet, plan.paths, self._reader.position)
        self._watch.set_pools(pool_sizes(plan))
        if plan.fleet.domains != before.fleet.domains:
            self._tftp.stop()
            self._server.stop()
            self._start_tftp()
            self._start_server()

    def _go_back(self, plan: BootPlan) -> None:
        """To a plan that was served before. Its TFTP files are those that can still be had."""
        if self._plan is not plan:
            with suppress(DuckError):
                sync_tftp(plan)
            self._take_over(plan)

    def _refuse(self, error: DuckError | OSError) -> None:
        """It is tried again later and at the next change; a reason is told once."""
        why = error.message if isinstance(error, DuckError) else str(error)
        text = f"what was served goes on, until that is mended: {why}"
        if self._refused.is_news(text):
            self._act(Finding(self._clock(), "refused", None, None, None, text))

    def _texts(self) -> tuple[str, str]:
        return render_config(self._plan, with_tftp=False), render_hosts(self._plan)

    def _start_dnsmasq(self, config: str, hosts: str) -> None:
        """Starts the DHCP process, anew if it runs; one that runs goes on if files cannot be
        written."""
        paths = self._plan.paths
        _write(paths.hosts, hosts)
        _write(paths.config, config)
        self._dhcp.stop()
        self._started_at = time.monotonic()
        self._dhcp.start(paths.config, config, paths.pid_file)
        self._running = (config, hosts)

    def _start_tftp(self) -> None:
        """Unless no domain is served: without an interface of its own it would listen on all."""
        paths = self._plan.paths
        if _served(self._plan):
            self._tftp.start(paths.tftp_config, render_tftp(self._plan), paths.tftp_pid_file)

    def _start_server(self) -> None:
        plan = self._plan
        self._server.start(_served(plan))

    def _restart_if_changed(self) -> None:
        """The DHCP process follows the plan; where it does not start, all goes back to the one that
        it had."""
        if not self._is_stale or time.monotonic() - self._started_at < RESTART_S_MIN:
            return
        self._is_stale = False
        texts = self._texts()
        try:
            if texts != self._running:
                self._start_dnsmasq(*texts)
            self._dhcp_plan = self._plan
        except (DuckError, OSError) as error:
            if not self._dhcp.is_started:
                self._start_dnsmasq(*self._running)
            self._go_back(self._dhcp_plan)
            self._is_stale = False
            self._refuse(error)

    def _act(self, finding: Finding) -> None:
        """A loop is stopped by serving no file; everything is told and written down. Where that
        cannot be written (a full disk), the service goes on."""
        self._on_finding(finding)
        paths = self._plan.paths
        try:
            with paths.findings.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(finding)) + "\n")
        except OSError as error:
            self._tell(f"a finding is not written down: {error}")
        if finding.kind != "loop" or finding.duck is None:
            return
        try:
            Intents(paths.intents, self._clock).hold(finding.duck, finding.text)
        except DuckError as error:
            self._tell(f"{finding.duck} cannot be held: {error.message}")

    def _tell(self, text: str) -> None:
        self._on_finding(Finding(self._clock(), "refused", None, None, None, text))

    def _check_pools(self) -> None:
        now = self._clock()
        if now - self._pool_checked < POOL_CHECK_S:
            return
        self._pool_checked = now
        use = pool_use(self._plan, read_leases(self._plan.paths.leases))
        for finding in self._watch.leases(now, use):
            self._act(finding)

    def _rotate(self) -> None:
        """Logs stay bounded: two files of ``LOG_BYTES_MAX`` each."""
        paths = self._plan.paths
        for path in (paths.dnsmasq_log, paths.http_log, paths.findings):
            if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
                path.replace(path.with_name(f"{path.name}.1"))
                if path == paths.dnsmasq_log:
                    for process in (self._dhcp, self._tftp):
                        process.signal(signal.SIGUSR2)  # opens its log anew
