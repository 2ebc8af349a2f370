"""Running the HTTP server until a signal, then stopping politely within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import signal
import socket
from collections.abc import Iterator

import uvicorn

from host_runtime.server.app import create_app
from host_runtime.server.limits import (
    CONNECTIONS_SPARE,
    FILES_SPARE,
    SAME_STOP_S,
    SHUTDOWN_GRACE_S,
    SHUTDOWN_MAX_S,
    UNREAD_MARGIN_S,
    UNREAD_MAX_S,
)
from host_runtime.server.port import bound_url, drop_unread
from host_runtime.server.progress import say
from host_runtime.server.service import Service

POLL_S = 0.05


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would end the process by the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``serve``."""
        yield


def serve(
    service: Service, listener: socket.socket, api_key: str | None, requests_max: int
) -> None:
    """Serve until SIGTERM or SIGINT; a second stop (SAME_STOP_S later) ends at once.

    `requests_max` is how many requests the engine holds at once, running and waiting.
    """
    wanted = requests_max + CONNECTIONS_SPARE
    connections = connections_max(wanted, _allow_files(wanted + FILES_SPARE))
    if connections < wanted:
        say(
            f"warning: at most {connections} connections at once, {wanted} would be enough: the "
            "limit of open files is too low (ulimit -n)"
        )
    asyncio.run(_serve(service, listener, api_key, connections))


def connections_max(wanted: int, files_max: int) -> int:
    """Up to `wanted` connections, as the limit of open files allows."""
    return min(wanted, max(files_max - FILES_SPARE, files_max // 2))


def _allow_files(wanted: int) -> int:
    """Raise this process's limit of open files as far as needed and possible; the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


async def _serve(
    service: Service, listener: socket.socket, api_key: str | None, connections: int
) -> None:
    config = uvicorn.Config(
        create_app(service, api_key),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=connections + 1,  # from so many on uvicorn refuses
        timeout_graceful_shutdown=int(SHUTDOWN_MAX_S),
    )
    drop_unread(listener, min(service.request_deadline_s + UNREAD_MARGIN_S, UNREAD_MAX_S))
    server = _Server(config)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    again_at = math.inf

    def on_signal() -> None:
        nonlocal again_at
        if not stop.is_set():
            again_at = loop.time() + SAME_STOP_S
        elif loop.time() >= again_at:
            server.force_exit = True
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(POLL_S)
    if not serving.done():
        print(f"ready {bound_url(listener)}", flush=True)  # noqa: T201 - the contract's ready line
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        await _wind_down(service, server)
    await serving


async def _wind_down(service: Service, server: uvicorn.Server) -> None:
    """Refuse new requests, let running answers finish for a while, then cancel them."""
    service.stopping = True
    if service.running:
        say(f"stopping: {len(service.running)} answers may finish for {SHUTDOWN_GRACE_S:g} s")
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + SHUTDOWN_GRACE_S
    while service.running and loop.time() < ends_at and not server.force_exit:
        await asyncio.sleep(POLL_S)
    for generation in list(service.running):
        generation.cancel()
    server.should_exit = True
