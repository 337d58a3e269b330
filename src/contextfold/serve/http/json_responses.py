"""How the daemon's own JSON paths answer, and how they refuse: one shape for every error. Knows HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from contextfold.common.canonical import Encodable, Malformed, decode, encode
from contextfold.error_codes import HTTP_STATUSES, JSON_RPC_CODES
from contextfold.errors import ArgumentInvalid, FoldError
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.http.refusals import error_told
from contextfold.serve.ops.logs import log

JSON = "application/json"


def refused(problem: FoldError, fold: FoldService) -> Response:
    """An expected failure, told without what the caller must not see again."""
    message, data = fold.safe_error(problem)
    log("request.refused", "warning", code=problem.code)
    told: dict[str, Encodable] = {"code": JSON_RPC_CODES[problem.code], "message": message}
    told["data"] = {"kind": problem.code, **data}
    return Response(encode({"error": told}), status_code=HTTP_STATUSES[problem.code], media_type=JSON)


def told_error(status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(error_told(status, kind, message)) + "\n"
    return Response(body, status_code=status, media_type=JSON, headers=headers)


def object_in(body: bytes) -> Mapping[str, object]:
    """The JSON object that a request's body holds."""
    try:
        value = decode(body)
    except Malformed as problem:
        raise ArgumentInvalid("body", str(problem)) from problem
    if not isinstance(value, dict):
        raise ArgumentInvalid("body", "must be a JSON object")
    return value
