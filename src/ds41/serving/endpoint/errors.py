"""What goes wrong, in the shape of OpenAI's API: a status, and an object with message, type, param and code."""

from __future__ import annotations

import math

from ds41.serving.pools.requests import NoWorkers, Overloaded, TooLong, WorkerLost
from ds41.vision.sizes import ImageError

_LONGEST_ECHO = 80


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP. message: for the client; nothing about the inside. kind: OpenAI's ``type``. code: OpenAI's.
        param: the field of the request that is at fault. retry_after_s: when the same request is worth trying again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.param = status, message, kind, code, param
        self.retry_after_s = retry_after_s

    def body(self) -> dict:
        """The JSON object that the client gets."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        found = {}
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            found["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return found


class ClientGone(Exception):
    """The client closed the connection; nobody waits for the answer."""


def refused(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A request that can never work; ``param`` begins the message."""
    return ApiError(400, f"{param} {message}" if param else message, param=param, code=code)


def no_model(asked: str, served: str) -> ApiError:
    return ApiError(404, f"there is no model {shown(asked)}; expected {served}", param="model", code="model_not_found")


def unavailable(message: str, retry_after_s: float = 5.0) -> ApiError:
    """The service cannot answer now, another one or a later one may."""
    return ApiError(503, message, kind="service_unavailable", code="unavailable", retry_after_s=retry_after_s)


def too_late(seconds: float) -> ApiError:
    return ApiError(504, f"the answer did not end within {seconds:g} s", kind="timeout_error", code="timeout")


def internal() -> ApiError:
    """What the log explains and the client does not need to know."""
    return ApiError(500, "the server failed to answer; the request may be sent again", kind="server_error")


def of_submission(error: Exception) -> ApiError | None:
    """What ``submit`` raised, for the client; None for what is a fault of the server's."""
    if isinstance(error, ImageError):
        return ApiError(400, str(error), code="invalid_image")
    if isinstance(error, ValueError | TypeError) and not isinstance(error, TooLong):
        return ApiError(400, str(error))
    return of_answer(error) or (unavailable("the server is shutting down") if type(error) is RuntimeError else None)


def of_answer(error: BaseException) -> ApiError | None:
    """What ended an answer, for the client; None for what is a fault of the server's."""
    if isinstance(error, ImageError):
        return ApiError(400, str(error), code="invalid_image")
    if isinstance(error, TooLong):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, Overloaded):
        return ApiError(
            429, str(error), kind="rate_limit_error", code="overloaded", retry_after_s=error.retry_after_s
        )  # fmt: skip
    if isinstance(error, NoWorkers):
        return unavailable("no worker can take the request now")
    if isinstance(error, WorkerLost):
        return unavailable("the worker that had the request was lost", 1.0)
    return None


def shown(value: object) -> str:
    """A value of a client's in a message: short, printable ASCII."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = ascii(value[: _LONGEST_ECHO + 1] if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}..."
