"""The HTTP server of network boot: HEAD, GET and single ranges over a fixed table of paths.

UEFI HTTP boot asks HEAD first and wants a Content-Length; iPXE and GRUB ask ranges. One server
per domain, bound to the host's address there, so nothing is served to other networks.
"""

from __future__ import annotations

import errno
import json
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from duckctl.boot.answers import BOOT_SCRIPT
from duckctl.boot.plan import BootPlan
from duckctl.boot.scripts import duck_script, first_script
from duckctl.boot.tree import web_paths
from duckctl.errors import DuckError
from duckctl.inventory import Domain

REQUEST_S = 30.0  # for a request to come, from its connection or the answer before
SEND_BYTES_PER_S_MIN = 1 << 15  # a client that takes less than this on the whole is cut off
REQUESTS_AT_ONCE_MAX = 128  # connections per domain; more wait in the listen queue
SLOT_WAIT_S = 0.1  # at once; the server looks at deadlines and at its end in between
LISTEN_QUEUE = 256
DESCRIPTORS_ELSE = 256  # besides two for each connection: its own and the file that it gets
READ_BYTES = 1 << 18
DUCK_SCRIPT = re.compile(r"/duck/([0-9a-f]{2}(?:-[0-9a-f]{2}){5})\.ipxe")
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Content:
    """What a path means: text made for this request, or a file."""

    text: bytes = b""
    path: Path | None = None


@dataclass(frozen=True)
class Span:
    """Bytes ``start`` to ``end`` (not included) of ``size``."""

    start: int
    end: int
    size: int


def resolve(plan: BootPlan, domain: Domain, target: str) -> Content | None:
    """The content of a request target, or None. Only names of the table and scripts exist."""
    path = unquote(urlsplit(target).path)
    if path == f"/{BOOT_SCRIPT}":
        return Content(first_script(plan, domain).encode())
    if match := DUCK_SCRIPT.fullmatch(path.lower()):
        return Content(duck_script(plan, domain, match.group(1).replace("-", ":")).encode())
    file = web_paths(plan).get(path)
    return Content(path=file) if file is not None and file.is_file() else None


def span_of(header: str | None, size: int) -> Span | None:
    """The bytes that a Range header asks for; all without one; None if there are none such."""
    match = RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return Span(0, size, size)  # RFC 9110 14.2: a form we do not know is ignored
    first, last = match.groups()
    if first == "":
        return Span(max(0, size - int(last)), size, size) if int(last) > 0 and size > 0 else None
    end = min(int(last) + 1, size) if last else size
    return Span(int(first), end, size) if int(first) < end else None


class _Server(ThreadingHTTPServer):
    """One domain's server."""

    daemon_threads = True
    request_queue_size = LISTEN_QUEUE
    allow_reuse_address = True

    def __init__(self, owner: BootServer, domain: Domain) -> None:
        self.owner, self.domain = owner, domain
        self._slots = threading.BoundedSemaphore(REQUESTS_AT_ONCE_MAX)
        self._deadlines: dict[socket.socket, float] = {}  # on the monotonic clock
        super().__init__((str(domain.host_address), owner.plan().policy.http_port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection leaves the listen queue only for a slot: before that it costs neither a
        descriptor nor a thread. Raises OSError, which the caller takes for "none yet"."""
        if not self._slots.acquire(timeout=SLOT_WAIT_S):
            raise TimeoutError(f"{REQUESTS_AT_ONCE_MAX} connections are open")
        try:
            return super().get_request()
        except OSError:
            self._slots.release()
            raise

    def shutdown_request(self, request: Any) -> None:
        """The end of every connection that ``get_request`` gave, however it went."""
        try:
            super().shutdown_request(request)
        finally:
            self._deadlines.pop(request, None)
            self._slots.release()

    def allow(self, connection: socket.socket, seconds: float) -> None:
        """From now on the connection may take this long for its next step."""
        self._deadlines[connection] = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Cuts connections off that are over time; their threads end by that."""
        now = time.monotonic()
        for connection, deadline in self._deadlines.copy().items():
            if now > deadline:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error of ours; the request's log line says how far."""


class _Handler(BaseHTTPRequestHandler):
    """One connection; several requests may follow each other on it."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "duckctl"
    sys_version = ""
    timeout = REQUEST_S

    def handle_one_request(self) -> None:
        self.server.allow(self.connection, REQUEST_S)
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        owner = self.server.owner
        content = resolve(owner.plan(), self.server.domain, self.path)
        if content is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no such file\n")
        elif content.path is None:
            self._send(Span(0, len(content.text), len(content.text)), None, content, with_body)
        else:
            try:
                with content.path.open("rb") as file:
                    size = content.path.stat().st_size
                    span = span_of(self.headers.get("Range"), size)
                    if span is None:
                        self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such range\n")
                    else:
                        self._send(span, file, content, with_body)
            except OSError as error:
                owner.log(self.server.domain, self, 0, 0, str(error))
                self.close_connection = True

    def _send(self, span: Span, file: IO[bytes] | None, content: Content, with_body: bool) -> None:
        whole = (span.start, span.end) == (0, span.size)
        status = HTTPStatus.OK if whole else HTTPStatus.PARTIAL_CONTENT
        size = span.end - span.start
        self.server.allow(self.connection, REQUEST_S + size / SEND_BYTES_PER_S_MIN)
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("Content-Type", "application/octet-stream" if file else "text/plain")
        self.send_header("Accept-Ranges", "bytes")
        if not whole:
            self.send_header("Content-Range", f"bytes {span.start}-{span.end - 1}/{span.size}")
        self.end_headers()
        sent = 0
        try:
            if with_body and file is None:
                self.wfile.write(content.text)
                sent = len(content.text)
            elif with_body and file is not None:
                sent = self.connection.sendfile(file, span.start, size)
        finally:
            complete = not with_body or sent == size
            problem = "" if complete else f"ended after {sent} of {size} bytes"
            self.server.owner.log(self.server.domain, self, int(status), sent, problem)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.server.owner.log(self.server.domain, self, int(status), 0, "")

    def log_message(self, format: str, *values: object) -> None:
        """Requests are logged as JSON by the owner."""


def _allow_descriptors(count: int) -> None:
    """Raises this process' limit of open files so far, where the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class BootServer:
    """The HTTP servers of all served domains. ``plan`` is asked anew at every request."""

    def __init__(self, plan: Callable[[], BootPlan], clock: Callable[[], float] = time.time):
        self.plan = plan
        self._clock = clock
        self._lock = threading.Lock()
        self._log_path = plan().paths.http_log
        self._servers: list[_Server] = []
        self._threads: list[threading.Thread] = []

    def start(self, domains: Sequence[Domain]) -> None:
        """Binds and serves in threads. Raises DuckError naming the address that is taken."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        _allow_descriptors(DESCRIPTORS_ELSE + 2 * REQUESTS_AT_ONCE_MAX * len(domains))
        for domain in domains:
            try:
                server = _Server(self, domain)
            except OSError as error:
                self.stop()
                port = self.plan().policy.http_port
                hint = "see who has it: ss -ltnp; or choose another: --http-port"
                if error.errno == errno.EADDRNOTAVAIL:
                    hint = f"no port of this machine has {domain.name}'s host address: ip address"
                raise DuckError(
                    f"cannot serve HTTP at {domain.host_address}:{port}: {error.strerror}", hint
                ) from error
            self._servers.append(server)
            thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stops listening; connections that run are dropped."""
        for server in self._servers:
            if self._threads:
                server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join(1.0)
        self._servers, self._threads = [], []

    def log(
        self, domain: Domain, handler: BaseHTTPRequestHandler, status: int, sent: int, problem: str
    ) -> None:
        """Appends one request to the log."""
        entry = {
            "time": round(self._clock(), 3),
            "domain": domain.name,
            "address": handler.client_address[0],
            "method": handler.command,
            "path": unquote(urlsplit(handler.path).path)[:256],
            "status": status,
            "bytes": sent,
            "problem": problem,
        }
        with self._lock, self._log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=True) + "\n")
