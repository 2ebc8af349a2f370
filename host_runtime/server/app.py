"""The HTTP application: routes, authentication, errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from host_runtime.server.chat import answer_chat
from host_runtime.server.completions import answer_completion
from host_runtime.server.engine_port import TracerPort
from host_runtime.server.errors import ApiError, bad_request, internal_error
from host_runtime.server.limits import BODY_BYTES_MAX, TRACE_CALLS_MAX
from host_runtime.server.service import Service
from host_runtime.server.strict_json import strict_json

log = logging.getLogger("host_runtime.server")


def create_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application for one served model; with a key, /v1 and /metrics want it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)
    app.include_router(_status_routes(service))
    app.include_router(_api_routes(service), dependencies=[Depends(_key_check(api_key))])
    return app


def _status_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/ready")
    async def ready() -> JSONResponse:
        document = _readiness(service)
        return JSONResponse(document, status_code=200 if document["ready"] else 503)

    return router


def _api_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer_chat(service, request, await _read_body(request))

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answer_completion(service, request, await _read_body(request))

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service)]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return _model(service)

    @router.get("/metrics")
    async def metrics() -> PlainTextResponse:
        text = service.metrics.render(service.engine.status())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @router.put("/trace")
    async def start_trace(request: Request) -> dict[str, Any]:
        tracer = _tracer(service)
        calls = _trace_calls(await _read_body(request))
        await asyncio.to_thread(tracer.set_trace, calls)
        return {"calls": calls}

    @router.get("/trace")
    async def read_trace() -> dict[str, Any]:
        return {"calls": await asyncio.to_thread(_tracer(service).trace)}

    return router


def _tracer(service: Service) -> TracerPort:
    if service.tracer is None:
        raise ApiError(404, "the experts run on the host: there are no calls to trace")
    return service.tracer


def _trace_calls(body: bytes) -> int:
    """``{"calls": N}``: how many of the last calls to keep; 0 ends the trace."""
    try:
        calls = strict_json(body)["calls"]
    except (ValueError, KeyError, TypeError):
        raise bad_request('expected a JSON object such as {"calls": 4096}') from None
    if isinstance(calls, bool) or not isinstance(calls, int) or not 0 <= calls <= TRACE_CALLS_MAX:
        raise bad_request(f"'calls' must be a whole number from 0 to {TRACE_CALLS_MAX}", "calls")
    return calls


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "duckctl",
        "max_model_len": service.max_context,
    }


def _readiness(service: Service) -> dict[str, Any]:
    status = service.engine.status()
    ready = status.ready and not service.stopping
    return {
        "ready": ready,
        "reason": "the server is stopping" if service.stopping else status.reason,
        "model": service.model_name,
        "active": status.active,
        "queued": status.queued,
        "ducks": [
            {
                "name": duck.name,
                "ready": duck.ready,
                "state": duck.state,
                "detail": duck.detail,
                "counters": dict(duck.counters),
            }
            for duck in status.ducks
        ],
    }


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise ApiError(
                413,
                f"the request body is larger than {BODY_BYTES_MAX} bytes",
                code="request_too_large",
                headers={"Connection": "close"},
            )
    return bytes(body)


def _key_check(api_key: str | None) -> Callable[[Request], Awaitable[None]]:
    async def check(request: Request) -> None:
        if api_key is None:
            _refuse_web_page(request)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = secrets.compare_digest(given.strip().encode(), api_key.encode())
        if scheme.lower() != "bearer" or not right:
            raise ApiError(
                401,
                "wrong or missing API key; send it as 'Authorization: Bearer KEY'",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check


def _refuse_web_page(request: Request) -> None:
    """Without a key, any web page open on this machine could use the server through the browser;
    browsers mark such requests with Origin."""
    if "origin" in request.headers:
        raise ApiError(
            403,
            "requests from web pages are refused; start the server with an API key to allow them",
            kind="permission_error",
            code="web_page_refused",
        )


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    known = "GET /v1/models, POST /v1/chat/completions, POST /v1/completions"
    messages = {
        404: f"there is no {request.url.path} here; the API has {known}",
        405: f"{request.method} is not allowed on {request.url.path}; the API has {known}",
    }
    answer = ApiError(
        error.status_code,
        messages.get(error.status_code, str(error.detail)),
        code={404: "not_found", 405: "method_not_allowed"}.get(error.status_code),
        headers=error.headers,
    )
    return await _api_error(request, answer)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _api_error(request, internal_error())
