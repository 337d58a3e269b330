"""JSON-RPC 2.0 messages: bytes to a request and back. Pure; knows no method and no stream."""

from __future__ import annotations

import json

from contextfold.common.json_depth import is_too_deep
from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601

LINE_MAX_BYTES = 1_048_576  # with its newline
INTEGER_DIGITS = 4300  # what every interpreter converts by default


class Request(Record):
    method: str
    params: Any  # as sent; absent is None
    id: str | int | None
    is_notification: bool


class RpcError(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, code: int, message: str, request_id: str | int | None = None, data: object = None) -> None:
        super().__init__(message)
        self.code, self.message, self.id, self.data = code, message, request_id, data


class _Endless(int):
    """An integer with more digits than anyone means: out of every range, and no id."""


def _integer(digits: str) -> int:
    return int(digits) if len(digits.lstrip("-")) <= INTEGER_DIGITS else _Endless(-1 if digits[0] == "-" else 1 << 64)


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_int=_integer, parse_constant=_reject_constant)


def parse(line: bytes) -> Request:
    """The request in a line; RpcError if it is none."""
    if is_too_deep(line):
        raise RpcError(PARSE_ERROR, "Parse error")
    try:
        message = _decoder.decode(line.decode("utf-8"))
    except ValueError:
        raise RpcError(PARSE_ERROR, "Parse error") from None
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "Invalid Request")
    is_notification = "id" not in message
    sent_id = message.get("id")
    legal = type(sent_id) in (str, int)
    request_id = sent_id if legal else None
    method = message.get("method")
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or not (legal or is_notification):
        raise RpcError(INVALID_REQUEST, "Invalid Request", request_id)
    return Request(method, message.get("params"), request_id, is_notification)


def result_line(request_id: str | int | None, result: object) -> bytes:
    return _line({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_line(error: RpcError) -> bytes:
    body = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return _line({"jsonrpc": "2.0", "id": error.id, "error": body})


def _line(message: object) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, echoed: only an escape can carry it
        return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
