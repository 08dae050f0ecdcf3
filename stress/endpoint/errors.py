"""Errors: what a client is told when it gets no answer, in the form of OpenAI's API."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from stress.endpoint.orders import End, Outcome

RETRY_AFTER_S = 1
"""A full queue moves with every request that ends: it is worth asking again soon."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong; `param` is the field of the body that is to blame."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a response that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """A request that gets no answer.

    Attributes:
        status: Of HTTP.
        detail: For the body.
        headers: Beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.detail = ErrorDetail(message, kind, param, code)
        self.headers = headers or {}
        super().__init__(message)

    def body(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(ErrorBody(self.detail))

    def response(self) -> Response:
        """As a response."""
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def busy(limit: int) -> ApiError:
    """There is no room in the queue."""
    return ApiError(
        429,
        f"the queue is full ({limit} requests wait)",
        kind="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def closing() -> ApiError:
    """The server is shutting down."""
    return ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")


def of_end(end: End, queue_max: int) -> ApiError:
    """The error that an end is, which is no answer."""
    if end.outcome is Outcome.FULL:
        return busy(queue_max)
    if end.outcome is Outcome.REFUSED:
        return ApiError(400, f"the target refuses the request: {end.why}", code="refused")
    if end.outcome is Outcome.DEADLINE:
        return ApiError(504, end.why, kind="timeout_error", code="deadline_exceeded")
    return ApiError(500, end.why, kind="server_error", code="failed")
