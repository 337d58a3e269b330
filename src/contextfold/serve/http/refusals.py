"""What the daemon says no with: one shape of error for every path, and the refusals of its edge. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from contextfold.error_codes import INTERNAL_ERROR as JSON_RPC_INTERNAL_ERROR
from contextfold.error_codes import JSON_RPC_CODES
from contextfold.errors import InternalError, LimitReached
from contextfold.serve.http.limits import Buckets
from contextfold.serve.mcp.jsonrpc import INVALID_REQUEST

INTERNAL_ERROR = 500
RETRY_AFTER_S = 1
CALLS_PER_SECOND = "calls_per_second"  # the limit's name in errors


class Refusal(Exception):
    """An answer that the inner application never hears of."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        data: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message
        self.headers, self.data = tuple(headers), data


def error_told(status: int, kind: str, message: str, data: Mapping[str, object] | None = None) -> dict[str, object]:
    """An error as every path tells it: a number of JSON-RPC's, words for people, and `data` for programs."""
    by_us = JSON_RPC_INTERNAL_ERROR if status >= INTERNAL_ERROR else INVALID_REQUEST
    return {
        "error": {"code": JSON_RPC_CODES.get(kind, by_us), "message": message, "data": {"kind": kind, **(data or {})}}
    }


def busy(message: str, code: str = "busy") -> Refusal:
    return Refusal(503, code, message, [(b"retry-after", str(RETRY_AFTER_S).encode())])


def too_large(most: int) -> Refusal:
    return Refusal(413, "body_too_large", f"The body has more than {most} bytes; send less at once.")


def too_often(buckets: Buckets, wait_s: float) -> Refusal:
    limit, seconds = buckets.limit, math.ceil(wait_s)
    return Refusal(
        429,
        LimitReached.code,
        f"More than {limit.per_second:g} calls a second after a burst of {limit.burst}; try again in {seconds} s.",
        [(b"retry-after", str(seconds).encode())],
        {"limit": CALLS_PER_SECOND, "value": int(limit.per_second)},
    )


def internal_error() -> Refusal:
    return Refusal(INTERNAL_ERROR, InternalError.code, f"{InternalError.message}; the daemon's log says where.")
