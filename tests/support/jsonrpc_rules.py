"""The rules of JSON-RPC 2.0 for answers, written from the specification and without using src."""

from __future__ import annotations

import json
from typing import Any


def due_answers(line: bytes) -> list[Any]:
    """The id of the one answer that a line must get, or an empty list if it must get none."""
    if line in (b"\n", b"\r\n"):
        return []
    try:
        message = json.loads(line.rstrip(b"\n").decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return [None]
    if not isinstance(message, dict):
        return [None]
    if "id" not in message:
        is_notification = message.get("jsonrpc") == "2.0" and isinstance(message.get("method"), str)
        return [] if is_notification else [None]
    return [message["id"] if type(message["id"]) in (str, int) else None]


def _no_constant(name: str) -> None:
    raise ValueError(name)


def faults_in(answer: Any) -> list[str]:
    """The violations of JSON-RPC in an answer."""
    if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0":
        return ["not a JSON-RPC 2.0 object"]
    faults = []
    if answer.keys() not in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}):
        faults.append(f"members {sorted(answer)}")
    if not (answer.get("id") is None or type(answer["id"]) in (str, int)):
        faults.append("illegal id")
    error = answer.get("error", {"code": 0, "message": ""})
    if type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        faults.append("illegal error")
    if error.keys() - {"code", "message", "data"}:
        faults.append("extra members of the error")
    return faults
