"""`/v1`: the daemon's JSON API, for the dashboard and for programs, and the JSON of all its paths. Knows HTTP.

A caller sees only what its owner has. `X-Context-Session` and `Idempotency-Key` mean the same as for MCP.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from contextfold.common import answer_format
from contextfold.common.canonical import JsonObject, Malformed, decode, encode
from contextfold.errors import ArgumentInvalid, FoldError, place_of
from contextfold.fold.events import kind_of, members
from contextfold.fold.service.demo import demo_session
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.overview import SAVINGS_GROUPS, Overview
from contextfold.fold.store import SEARCH_MAX, WatchedEvent
from contextfold.fold.tool_calls import (
    BRANCH_ID_LENGTH_MAX,
    BUDGET,
    BUDGET_MAX,
    BUDGET_MIN,
    TYPE_LENGTH_MAX,
    ArgumentFields,
    parse_cursor,
    parse_recall_request,
)
from contextfold.serve.http.exchange import OWNER, RUN_NAME
from contextfold.serve.http.mcp_endpoint import caller_of
from contextfold.serve.ops.logs import log
from contextfold.serve.request_error import RequestError, known_error
from contextfold.serve.resolvers import Resolvers

JSON = "application/json"
HTTP_OK = 200


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


# The default and the largest number of sessions, and of rows of a tree, in one response.
SESSIONS, SESSIONS_MAX = 20, 100
ROWS, ROWS_MAX = 100, 500
SUMMARIES = 20
# A preview names at most this many branches that would be discarded.
DISCARDED_MAX = 100
# At most this many sessions whose logs cannot be read are logged.
UNREADABLE_MAX = 1_000
# A query, a cursor or an id has at most this many characters.
TEXT_MAX = 1_000
ALIVE_EVERY_S = 15.0
RETRY_MS = 1_000
EVENT_STREAM = "text/event-stream"
UNPROCESSABLE = 422

# A handler returns a response, or what is sent as JSON.
Handler = Callable[[Request], Awaitable[Response | JsonObject]]


class HttpApi:
    """The handlers of `/v1`. Without `resolvers`, the two paths about documents are not served."""

    def __init__(self, fold: FoldService, resolvers: Resolvers | None = None) -> None:
        self._fold = fold
        self._resolvers = resolvers
        self._overview = Overview(fold, self._log_unreadable)
        # The sessions that were logged as such.
        self._unreadable: set[str] = set()

    def routes(self) -> list[Route]:
        session = "/v1/sessions/{session_id}"
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/operations", self.operations),
            ("GET", "/v1/sessions", self.sessions),
            ("GET", session, self.session),
            ("GET", f"{session}/timeline", self.timeline),
            ("GET", f"{session}/savings", self.savings),
            ("GET", f"{session}/misses", self.misses),
            ("GET", f"{session}/trajectory", self.trajectory),
            ("GET", f"{session}/rollback", self.preview),
            ("POST", f"{session}/rollback", self.rollback),
            ("POST", f"{session}/fold", self.fold),
            ("GET", "/v1/savings", self.savings_by),
            ("PUT", "/v1/runs/{run}", self.announce_run),
            ("GET", "/v1/runs/{run}", self.run),
            ("GET", "/v1/summaries", self.summaries),
            ("GET", "/v1/search", self.search),
            ("POST", "/v1/recall", self.recall),
            ("POST", "/v1/demo", self.demo),
            ("GET", "/v1/events", self.events),
        ]
        if self._resolvers is not None:
            table += [("GET", "/v1/caches", self.caches), ("POST", "/v1/ask", self.ask)]
        return [Route(path, endpoint=self._endpoint(handler), methods=[method]) for method, path, handler in table]

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """The handler, with its result encoded and expected failures turned into error responses."""

        async def answer_request(request: Request) -> Response:
            try:
                answer = await handler(request)
                return answer if isinstance(answer, Response) else Response(encode(answer), media_type=JSON)
            except FoldError as problem:
                return failure_response(problem, self._fold)
            except RequestError as error:
                return error_response(error)

        answer_request.__doc__ = handler.__doc__
        return answer_request

    def _log_unreadable(self, session_id: str) -> None:
        """Log a session whose log cannot be read: once, because a page reads the list again and again."""
        if session_id not in self._unreadable and len(self._unreadable) < UNREADABLE_MAX:
            self._unreadable.add(session_id)
            log("session.unreadable", "error", session_id=session_id)

    async def operations(self, request: Request) -> JsonObject:
        """Record an operation of your own agent loop; the body is what `context_record` takes."""
        body = parse_object(await request.body())
        return (await self._fold.record(caller_of(request.scope), body)).answer

    async def sessions(self, request: Request) -> JsonObject:
        """Live or (`ended=true`) ended sessions, latest first; `unreadable` names damaged ones: `limit`, `cursor`."""
        limit = _integer(request, "limit", SESSIONS, 1, SESSIONS_MAX)
        read = self._overview.ended_sessions if _flag(request, "ended", default=False) else self._overview.sessions
        return await read(_owner(request), cursor=_text(request, "cursor"), limit=limit)

    async def session(self, request: Request) -> JsonObject:
        """A session's figures and the last rows of its tree: `limit`, `before` (a row's number)."""
        limit = _integer(request, "limit", ROWS, 1, ROWS_MAX)
        before = _integer(request, "before", 0, 0, 10**9) if request.query_params.get("before") else None
        return await self._overview.session(*_session(request), before=before, limit=limit)

    async def timeline(self, request: Request) -> JsonObject:
        """A session's figures over time, with at most 240 points."""
        return await self._overview.timeline(*_session(request))

    async def savings(self, request: Request) -> JsonObject:
        """The savings or costs of folding in a session's requests to models, with at most 240 points."""
        return await self._overview.savings(*_session(request))

    async def misses(self, request: Request) -> JsonObject:
        """Why the provider's prompt cache did not hold a part of a session's requests, and what that cost."""
        return await self._overview.misses(*_session(request))

    async def savings_by(self, request: Request) -> JsonObject:
        """What folding saved or cost in the live and ended sessions, `by` session, project, day or model."""
        group = _text(request, "by") or "project"
        if group not in SAVINGS_GROUPS:
            raise ArgumentInvalid("by", f"must be one of {', '.join(SAVINGS_GROUPS)}")
        return await self._overview.savings_by(_owner(request), group)

    async def announce_run(self, request: Request) -> JsonObject:
        """Announce a program that is about to start; the body is `{"project_path": …, "program": …}`.

        Each path of the daemon exists below `/run/RUN`, too; what is sent there belongs to the run.
        """
        fields = ArgumentFields(parse_object(await request.body()), "project_path", "program")
        program = fields.word("program", length_max=TYPE_LENGTH_MAX)
        project, name = fields.project(), _run(request)
        self._fold.conversations.announce_run(_owner(request), name, project, program)
        return {"run": name, "project_path": project.path, "program": program}

    async def run(self, request: Request) -> JsonObject:
        """What the requests of a run sent and saved, when all its reports are written."""
        totals = await self._overview.run(_owner(request), _run(request))
        if totals is None:
            raise RequestError(404, "not_found", "Nothing is known of this run: announce it with PUT first.")
        return totals

    async def trajectory(self, request: Request) -> JsonObject:
        """The trajectory of a branch or of the main thread, page by page: `branch_id`, `budget`, `cursor`."""
        budget = _integer(request, "budget", BUDGET, BUDGET_MIN, BUDGET_MAX)
        position = parse_cursor(_text(request, "cursor") or "0.0")
        branch_id = _text(request, "branch_id")
        owner, session_id = _session(request)
        return await self._overview.trajectory(owner, session_id, branch_id, budget_tokens=budget, position=position)

    async def preview(self, request: Request) -> JsonObject:
        """The branches and tokens that a rollback would discard and recover: `branch_id`, `restore_state`."""
        restore_state = _flag(request, "restore_state", default=True)
        branch_id = _text(request, "branch_id") or ""
        owner, session_id = _session(request)
        return await self._overview.preview(
            owner, session_id, branch_id, restore_state=restore_state, most=DISCARDED_MAX
        )

    async def rollback(self, request: Request) -> JsonObject:
        """Roll back to the beginning of a branch; the body is `{"branch_id": …, "restore_state": true}`."""
        body = parse_object(await request.body())
        operation_id = caller_of(request.scope).operation_id
        return await self._fold.roll_back_session(*_session(request), body, operation_id)

    async def fold(self, request: Request) -> JsonObject:
        """Fold what the agent did since the user's last words, also in later requests; the body: `{"message": …}`."""
        body = parse_object(await request.body())
        operation_id = caller_of(request.scope).operation_id
        return await self._fold.fold_session(*_session(request), body, operation_id)

    async def summaries(self, request: Request) -> JsonObject:
        """Folded branches whose summary or description has every word of `query`; `limit`."""
        limit = _integer(request, "limit", SUMMARIES, 1, SEARCH_MAX)
        return await self._overview.search(_owner(request), _text(request, "query") or "", limit=limit)

    async def search(self, request: Request) -> JsonObject:
        """Sessions, branches and summaries that have every word of `query`; `limit` for each kind."""
        limit = _integer(request, "limit", SUMMARIES, 1, SEARCH_MAX)
        return await self._overview.search_all(_owner(request), _text(request, "query") or "", limit=limit)

    async def recall(self, request: Request) -> JsonObject | Response:
        """Folds and left-out results, as JSON or `format` `text`; the body: as `context_recall`, and `undone`."""
        recall = parse_recall_request({"format": answer_format.JSON, **parse_object(await request.body())})
        answer = await self._fold.recalls.answer(_owner(request), recall)
        return answer.as_members() if recall.format == answer_format.JSON else PlainTextResponse(answer.to_text())

    async def demo(self, request: Request) -> JsonObject:
        """Create a small scripted session to explore the dashboard, or return the one that exists."""
        return {"session_id": await demo_session(self._fold, _owner(request))}

    async def caches(self, _request: Request) -> Response:
        """The caches of documents below the daemon's cache root, as `context.list_caches` lists them."""
        return await self._call_resolve_tool("context.list_caches", {})

    async def ask(self, request: Request) -> Response:
        """Sections that answer a question, as JSON or `format` `text`; the body is what `context.ask` takes."""
        # The tool checks its arguments, and gives the same error for each of them on every transport.
        body = parse_object(await request.body(), lone_surrogates=True)
        response = await self._call_resolve_tool("context.ask", {"format": answer_format.JSON, **body})
        if body.get("format") == answer_format.TEXT and response.status_code == HTTP_OK:
            return PlainTextResponse(response.body)
        return response

    async def _call_resolve_tool(self, tool: str, arguments: Mapping[str, object]) -> Response:
        """Call a resolve tool and return its text. An error has the tool's text and the status 422."""
        assert self._resolvers is not None
        try:
            result = await self._resolvers.call(tool, arguments)
        except RequestError as error:
            # It may repeat an argument's name.
            error.message, _ = self._fold.safe_error(FoldError(error.message))
            raise
        return Response(result.text, status_code=UNPROCESSABLE if result.kind else 200, media_type=JSON)

    async def events(self, request: Request) -> Response:
        """New events (server-sent); `session`; `after` or `Last-Event-ID` to continue after an event."""
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM)
        after = request.headers.get("last-event-id") or _text(request, "after")
        if after:
            await self._fold.store.check_cursor(after)
        cursor = after or await self._fold.store.cursor()
        events = self._fold.follow(_owner(request), cursor, _text(request, "session"))
        return StreamingResponse(_stream(cursor, events), media_type=EVENT_STREAM)


async def _stream(cursor: str, events: AsyncGenerator[WatchedEvent]) -> AsyncGenerator[str]:
    """Server-sent events, with a comment at intervals so that both ends notice a broken connection."""
    coming = asyncio.ensure_future(anext(events))
    try:
        yield f"retry: {RETRY_MS}\nid: {cursor}\nevent: following\ndata: {{}}\n\n"
        while True:
            done, _ = await asyncio.wait([coming], timeout=ALIVE_EVERY_S)
            if not done:
                yield ": still here\n\n"
                continue
            seen = coming.result()
            body = encode({"session_id": seen.session_id, **members(seen.event)})
            yield f"id: {seen.cursor}\nevent: {kind_of(seen.event)}\ndata: {body}\n\n"
            coming = asyncio.ensure_future(anext(events))
    except StopAsyncIteration:
        return
    # The client reconnects, and gets the error then.
    except FoldError as problem:
        log("events.ended", "warning", code=problem.code, raised_at=place_of(problem))
    finally:
        await _stop_following(coming, events)


async def _stop_following(coming: asyncio.Future[WatchedEvent], events: AsyncGenerator[WatchedEvent]) -> None:
    """Stop following after the client has disconnected."""
    coming.cancel()
    with suppress(asyncio.CancelledError, StopAsyncIteration, FoldError):
        await coming
    await events.aclose()


# The checked query parameters of a request; unknown names are ignored.


def _text(request: Request, name: str) -> str | None:
    value = request.query_params.get(name) or None
    if value is not None and len(value) > TEXT_MAX:
        raise ArgumentInvalid(name, f"must have at most {TEXT_MAX} characters")
    return value


def _integer(request: Request, name: str, default: int, least: int, most: int) -> int:
    value = request.query_params.get(name) or str(default)
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(most)) and least <= int(value) <= most):
        raise ArgumentInvalid(name, f"must be a whole number from {least} to {most}")
    return int(value)


def _flag(request: Request, name: str, *, default: bool) -> bool:
    value = request.query_params.get(name) or str(default).lower()
    if value not in ("true", "false"):
        raise ArgumentInvalid(name, "must be true or false")
    return value == "true"


def _owner(request: Request) -> str:
    owner: str = request.scope[OWNER]
    return owner


def _run(request: Request) -> str:
    name: str = request.path_params["run"]
    if not re.fullmatch(RUN_NAME, name):
        raise ArgumentInvalid("run", "must be run_ and 16 hexadecimal digits")
    return name


def _session(request: Request) -> tuple[str, Any]:
    session_id = request.path_params["session_id"]
    if len(session_id) > BRANCH_ID_LENGTH_MAX:
        raise ArgumentInvalid("session_id", f"must have at most {BRANCH_ID_LENGTH_MAX} characters")
    return _owner(request), session_id
