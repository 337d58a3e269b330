"""The daemon's routes: MCP, `/v1`, hooks, the dashboard, discovery, health, metrics; and the state header around MCP.

`serve.http.guard` decides which requests are admitted; `serve.http.mcp_endpoint` and `fold.service` do what a call asks
for. Knows HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from contextfold.common.canonical import encode
from contextfold.common.exception_location import place_of
from contextfold.errors import FoldError, StoreUnavailable
from contextfold.serve.api import HttpApi
from contextfold.serve.hooks import HookEndpoints
from contextfold.serve.http.dashboard_files import Web
from contextfold.serve.http.guard import MCP_PATH, PROXY_PATH, App, Guard, Message, Receive, Scope, Send
from contextfold.serve.http.json_responses import JSON, told_error
from contextfold.serve.http.mcp_endpoint import TOLD, McpEndpoint, Services, Told
from contextfold.serve.mcp.tools import FoldTool, listing
from contextfold.serve.ops.logs import log
from contextfold.serve.proxy.endpoint import Proxy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.serve.mcp.tools import Tool
    from contextfold.settings import ProxySettings

STATE_HEADER = b"x-context-state"
TIDY_EVERY_MOST_S = 60.0
FORGET_EVERY_S = 3600.0
READY_TIMEOUT_S = 2.0
READY_KEPT_S = 1.0  # anybody may ask, and every answer costs a commit


def routes_of(tools: Sequence[Tool], services: Services, *, body_max_bytes: int, proxied: ProxySettings) -> Starlette:
    """The application behind the guard. The store is reached for first, before anybody is answered."""
    endpoint = McpEndpoint(tools, services, body_max_bytes=body_max_bytes)
    pages = _Pages(tools, services)
    folds = any(isinstance(tool, FoldTool) for tool in tools)
    hooks = HookEndpoints(services.fold, services.metrics)
    reports = hooks.routes() if folds else []
    proxy = Proxy(services.fold, services.metrics, proxied)
    passing = proxy.routes() if folds else []

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await _reach_store(services)
        async with endpoint.manager.run():
            tidying = asyncio.create_task(_tidy(services))
            try:
                yield
            finally:
                tidying.cancel()
                with suppress(asyncio.CancelledError):
                    await tidying
                await hooks.close()
                await proxy.close()
                try:
                    await services.fold.close()
                finally:
                    await services.resolvers.close()

    routes = [
        Route(MCP_PATH, endpoint=endpoint, methods=["POST"]),
        *reports,
        *passing,
        *([*HttpApi(services.fold).routes(), *Web().routes()] if folds else []),
        Route(MCP_PATH, endpoint=pages.no_stream, methods=["GET", "DELETE"]),
        Route(f"{MCP_PATH}/tools/list", endpoint=pages.tools, methods=["GET"]),
        Route("/healthz", endpoint=pages.healthz, methods=["GET"]),
        Route("/readyz", endpoint=pages.readyz, methods=["GET"]),
        Route("/metrics", endpoint=pages.metrics, methods=["GET"]),
    ]
    return _Application(
        routes=routes, lifespan=lifespan, exception_handlers={404: _not_found, 405: _wrong_method}
    ).with_shortcuts(reports, passing)


class _Application(Starlette):
    """Starlette, past whose layers the paths go that an agent waits for at every step, and what is only passed on."""

    _shortcuts: Mapping[str, Route] = {}
    _passing: Mapping[str, Route] = {}

    def with_shortcuts(self, routes: Sequence[Route], passing: Sequence[Route]) -> _Application:
        self._shortcuts = {route.path: route for route in routes}
        self._passing = {route.path.partition("{")[0]: route for route in passing}
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._shortcut(scope.get("path", ""), scope.get("method", ""))
        if route is None:
            await super().__call__(scope, receive, send)
        else:
            scope["route"] = route
            await route.app(scope, receive, send)

    def _shortcut(self, path: str, method: str) -> Route | None:
        if path.startswith(PROXY_PATH):
            return next((route for prefix, route in self._passing.items() if path.startswith(prefix)), None)
        return self._shortcuts.get(path) if method == "POST" else None


class StatingGuard(Guard):
    """A guard that puts `X-Context-State` on every response to an MCP path, its own refusals included."""

    def __init__(self, app: App, *, no_state: str, **given: Any) -> None:  # noqa: ANN401 - what a guard takes
        super().__init__(app, **given)
        self._no_state = no_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_mcp(scope["path"]):
            await super().__call__(scope, receive, send)
            return
        told = Told(self._no_state)

        async def send_with_state(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Ids and figures only, so this is ASCII and one line.
                header = (STATE_HEADER, told.state.encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await super().__call__({**scope, TOLD: told}, receive, send_with_state)


class _Pages:
    def __init__(self, tools: Sequence[Tool], services: Services) -> None:
        self._services = services
        self._checking = asyncio.Lock()
        self._checked_s = -READY_KEPT_S
        self._is_ready = False
        discovered = [{key: told for key, told in listing(tool).items() if key != "annotations"} for tool in tools]
        self._discovery = encode({"tools": discovered})

    async def tools(self, _request: Request) -> Response:
        """The tools and their schemas, for whoever has no MCP client at hand."""
        return Response(self._discovery, media_type=JSON)

    async def healthz(self, _request: Request) -> Response:
        """Whether the process answers; needs no token."""
        return PlainTextResponse("ok\n")

    async def readyz(self, _request: Request) -> Response:
        """Whether the store takes commits, 503 if not; needs no token."""
        async with self._checking:
            if self._services.clock() - self._checked_s >= READY_KEPT_S:
                self._is_ready = await self._check()
                self._checked_s = self._services.clock()
        if self._is_ready and not self._services.fold.reports.is_unavailable:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"{StoreUnavailable.code}: the state store does not take commits\n", 503)

    async def _check(self) -> bool:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._services.fold.store.check()
        except (FoldError, TimeoutError):
            return False
        return True

    async def metrics(self, _request: Request) -> Response:
        """Figures for Prometheus."""
        with suppress(FoldError):
            self._services.metrics.sessions_open(await self._services.fold.store.count())
        self._services.metrics.hook_waiting(self._services.fold.reports.waiting)
        page, content_type = self._services.metrics.render()
        return Response(page, headers={"content-type": content_type})

    async def no_stream(self, _request: Request) -> Response:
        """There is no stream and no session to end: 405."""
        message = "This server has no stream and keeps no session: POST to it."
        return told_error(405, "method_not_allowed", message, headers={"allow": "POST"})


async def _reach_store(services: Services) -> None:
    """A store that is away may come, and calls fail until it does; one that says no ends the start."""
    try:
        await services.fold.store.reach()
    except StoreUnavailable:
        pass
    except BaseException:
        await services.fold.close()
        raise


async def _tidy(services: Services) -> None:
    """End idle sessions and forget what is too old, now and then, for as long as the daemon runs."""
    every_s = min(TIDY_EVERY_MOST_S, services.fold.policy.idle_s / 2)
    forgot_s = -FORGET_EVERY_S
    while True:
        try:
            ended = await services.fold.end_idle()
            if ended:
                log("sessions.ended", count=ended)
                services.metrics.session("ended", ended)
            if services.clock() - forgot_s >= FORGET_EVERY_S:
                await services.fold.forget()
                forgot_s = services.clock()
        except StoreUnavailable:
            pass  # as whoever calls meanwhile is told
        except Exception as problem:  # the next turn may do better; the calls that come meanwhile say so themselves
            log("tidy.failed", "error", exception=type(problem).__name__, raised_at=place_of(problem))
        await asyncio.sleep(every_s)


def _is_mcp(path: str) -> bool:
    return path == MCP_PATH or path.startswith(f"{MCP_PATH}/")


async def _not_found(_request: Request, _problem: Exception) -> Response:
    message = (
        "There is nothing here; the dashboard is at /, MCP at /mcp, models behind /proxy/anthropic and "
        "/proxy/openai/v1, and everything else below /v1."
    )
    return told_error(404, "not_found", message)


async def _wrong_method(_request: Request, problem: Exception) -> Response:
    allowed = (getattr(problem, "headers", None) or {}).get("Allow", "")
    headers = {"allow": allowed} if allowed else None
    return told_error(405, "method_not_allowed", f"Use {allowed or 'another method'} here.", headers=headers)
