"""JSON responses of the daemon's own paths, and the format of their errors. Knows HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from contextfold.common.canonical import Malformed, decode
from contextfold.errors import ArgumentInvalid, FoldError
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.ops.logs import log
from contextfold.serve.request_error import RequestError, known_error

JSON = "application/json"


def error_response(error: RequestError) -> Response:
    headers = {name.decode("ascii"): value.decode("ascii") for name, value in error.headers}
    body = json.dumps({"error": error.http_error()}, ensure_ascii=False) + "\n"
    return Response(body, status_code=error.status, media_type=JSON, headers=headers)


def failure_response(problem: FoldError, fold: FoldService) -> Response:
    """The response to an expected failure, without secrets."""
    message, data = fold.safe_error(problem)
    log("request.refused", "warning", code=problem.code)
    return error_response(known_error(problem.code, message, data))


def parse_object(body: bytes, *, lone_surrogates: bool = False) -> Mapping[str, object]:
    """Parse the body of a request as a JSON object. Its texts may have `lone_surrogates` if the caller checks them."""
    try:
        value = decode(body, lone_surrogates=lone_surrogates)
    except Malformed as problem:
        raise ArgumentInvalid("body", str(problem)) from problem
    if not isinstance(value, dict):
        raise ArgumentInvalid("body", "must be a JSON object")
    return value
