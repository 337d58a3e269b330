"""Parses JSON-RPC 2.0 requests and encodes results and errors. Pure; knows no method and no stream."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from contextfold.common.canonical import is_too_deep
from contextfold.serve.request_error import BAD_REQUEST_STATUS, INVALID_REQUEST, PARSE_ERROR, RequestError

# The longest line, including its newline.
LINE_MAX_BYTES = 1_048_576
# By default, Python converts integers of up to this many digits.
INTEGER_DIGITS = 4300


class RpcRequest(NamedTuple):
    method: str
    # The unchecked parameters; None if absent.
    params: Any
    id: str | int | None
    is_notification: bool


class InvalidMessage(RequestError):
    """A message is not a valid request. `request_id` is its id, if that is valid."""

    def __init__(self, code: int, message: str, request_id: str | int | None = None) -> None:
        super().__init__(BAD_REQUEST_STATUS, "invalid_request", message, code=code)
        self.request_id = request_id


class _HugeInteger(int):
    """Represents an integer with more digits than INTEGER_DIGITS, which is out of every range and no valid id."""


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) <= INTEGER_DIGITS:
        return int(digits)
    return _HugeInteger(-1 if digits[0] == "-" else 1 << 64)


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_int=_integer, parse_constant=_reject_constant)


def parse(message: bytes) -> RpcRequest:
    """Parse a message. Raises InvalidMessage if it is not a request."""
    if is_too_deep(message):
        raise InvalidMessage(PARSE_ERROR, "Parse error")
    try:
        value = _decoder.decode(message.decode("utf-8"))
    except ValueError:
        raise InvalidMessage(PARSE_ERROR, "Parse error") from None
    if not isinstance(value, dict):
        raise InvalidMessage(INVALID_REQUEST, "Invalid Request")
    is_notification = "id" not in value
    sent_id = value.get("id")
    is_legal = type(sent_id) in (str, int)
    request_id = sent_id if is_legal else None
    method = value.get("method")
    if value.get("jsonrpc") != "2.0" or not isinstance(method, str) or not (is_legal or is_notification):
        raise InvalidMessage(INVALID_REQUEST, "Invalid Request", request_id)
    return RpcRequest(method, value.get("params"), request_id, is_notification)


def encode_result(request_id: str | int | None, result: object) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: str | int | None, error: RequestError) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error.rpc_error()})


def _encode(message: object) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate in an echoed value can only be written as an escape.
        return json.dumps(message, separators=(",", ":")).encode("ascii")
