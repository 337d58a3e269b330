"""The error type of all transports: a request that is answered with an error.

An error has an HTTP status, a JSON-RPC code, and a `kind`, which is its name in logs, metrics and `data`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from contextfold.common.canonical import Encodable
from contextfold.errors import HTTP_STATUSES, INTERNAL_ERROR, JSON_RPC_CODES, InternalError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601

BAD_REQUEST_STATUS = 400
INTERNAL_ERROR_STATUS = 500
RETRY_AFTER_S = 1


class RequestError(Exception):
    """A request that is answered with an error.

    `data` is for programs, `reason` for the operator's log and never for the caller, `state` is what the
    response says about the session after the failed call.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        data: Mapping[str, object] | None = None,
        *,
        code: int | None = None,
        reason: str = "",
        state: Mapping[str, Encodable] | None = None,
    ) -> None:
        super().__init__(status, kind, message)
        default = INTERNAL_ERROR if status >= INTERNAL_ERROR_STATUS else INVALID_REQUEST
        self.status, self.kind, self.message, self.headers = status, kind, message, tuple(headers)
        self.code = JSON_RPC_CODES.get(kind, default) if code is None else code
        self.data, self.reason, self.state = data, reason, state

    def rpc_error(self) -> dict[str, object]:
        """The `error` member of a JSON-RPC response."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error

    def http_error(self) -> dict[str, object]:
        """The `error` member of every other JSON body. Its `data` names the kind."""
        return {"code": self.code, "message": self.message, "data": {"kind": self.kind, **(self.data or {})}}


def known_error(
    kind: str,
    message: str,
    data: Mapping[str, object] | None = None,
    *,
    reason: str = "",
    state: Mapping[str, Encodable] | None = None,
) -> RequestError:
    """An error with one of this product's error codes; status and JSON-RPC code follow from it."""
    return RequestError(HTTP_STATUSES[kind], kind, message, data=data, reason=reason, state=state)


def internal_error(
    reason: str = "", *, state: Mapping[str, Encodable] | None = None, data: Mapping[str, object] | None = None
) -> RequestError:
    return known_error(InternalError.code, InternalError.message, data, reason=reason, state=state)


def busy(message: str, kind: str = "busy") -> RequestError:
    """A request that may succeed if it is sent again."""
    return RequestError(503, kind, message, [(b"retry-after", str(RETRY_AFTER_S).encode())], {"retry": True})
