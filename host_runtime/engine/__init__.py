"""Requests in, token events out: scheduling, decoding with MTP, sampling."""

from host_runtime.engine.engine import Engine, EngineStatus
from host_runtime.engine.request import (
    ContextTooLongError,
    FinishedEvent,
    InvalidRequestError,
    QueueFullError,
    RequestHandle,
    RequestStats,
    SamplingParams,
    TokenEvent,
)

__all__ = [
    "ContextTooLongError",
    "Engine",
    "EngineStatus",
    "FinishedEvent",
    "InvalidRequestError",
    "QueueFullError",
    "RequestHandle",
    "RequestStats",
    "SamplingParams",
    "TokenEvent",
]
