"""Errors of the server: those that stop the start-up, and those that a client sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from host_runtime.errors import HostError


class StartupError(HostError):
    """The server can't start."""


class ApiError(Exception):
    """An answer in OpenAI's error form: ``{"error": {message, type, param, code}}``."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body that the client gets."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong; ``param`` names the field."""
    return ApiError(400, message, param=param, code=code)


def internal_error() -> ApiError:
    """500: a defect of the server; nothing of it is for clients."""
    return ApiError(
        500,
        "internal error of the server; its log has the details",
        kind="server_error",
        code="internal_error",
    )


def ducks_unavailable(message: str) -> ApiError:
    """503: at least one duck doesn't serve; the message names it."""
    return ApiError(
        503,
        message,
        kind="service_unavailable_error",
        code="duck_unavailable",
        headers={"Retry-After": "5"},
    )
