"""The daemon's routes: MCP, `/v1`, hooks, the proxy, the dashboard, discovery, health, metrics. Knows HTTP.

`serve.http.guard` decides which requests are admitted; `serve.http.mcp_endpoint` and `fold.service` carry them out.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from contextfold import __version__
from contextfold.common.canonical import Encodable, encode
from contextfold.common.daemon_proof import find_proof
from contextfold.errors import FoldError, StoreUnavailable, place_of
from contextfold.fold.events import timestamp
from contextfold.serve.api import JSON, HttpApi, error_response
from contextfold.serve.hooks import HookEndpoints
from contextfold.serve.http.exchange import MCP_PATH, PAGE_PATH, PROXY_PATH, WEB_PATH, Receive, Scope, Send
from contextfold.serve.http.mcp_endpoint import DaemonServices, McpEndpoint
from contextfold.serve.mcp.tools import FoldTool, ResolveTool, Tool, describe_tool
from contextfold.serve.ops.logs import log
from contextfold.serve.proxy.endpoint import Proxy
from contextfold.serve.request_error import RequestError
from contextfold.settings import ProxySettings, proof_folder

MAINTENANCE_EVERY_MAX_S = 60.0
DELETE_EXPIRED_EVERY_S = 3600.0
READY_TIMEOUT_S = 2.0
# The time for the end of the application: hook reports are written, the store is closed.
CLOSE_TIMEOUT_S = 15.0
# The result of a readiness check is cached for this time, because each check needs a commit and no token.
READY_CACHED_S = 1.0
CLOCK_AHEAD = (
    "clock_ahead: the clock went from {} to {} and the store saw no time pass between, so what is older expires that "
    "much later; if the clock is right, start the daemon with --trust-clock\n"
)
PAGE = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {"content-security-policy": CONTENT_SECURITY_POLICY, "cross-origin-opener-policy": "same-origin"}


class DaemonApplication(Starlette):
    """The application behind the guard.

    Every step of an agent uses MCP, hooks and the proxy, so they are called without Starlette's layers.
    """

    def __init__(self, tools: Sequence[Tool], services: DaemonServices, proxy_settings: ProxySettings) -> None:
        self._services = services
        self._hooks = HookEndpoints(services.fold, services.metrics)
        self._proxy = Proxy(services.fold, services.metrics, proxy_settings)
        has_fold_tools = any(isinstance(tool, FoldTool) for tool in tools)
        mcp = Route(MCP_PATH, endpoint=McpEndpoint(tools, services), methods=["POST"])
        hooks = self._hooks.routes() if has_fold_tools else []
        proxied = self._proxy.routes() if has_fold_tools else []
        self._posts = {route.path: route for route in (mcp, *hooks)}
        self._proxied = {route.path.partition("{")[0]: route for route in proxied}
        has_resolve_tools = any(isinstance(tool, ResolveTool) for tool in tools)
        api = HttpApi(services.fold, services.resolvers if has_resolve_tools else None)
        pages = StatusPages(tools, services)
        super().__init__(
            routes=[
                mcp,
                *hooks,
                *proxied,
                *([*api.routes(), *DashboardFiles().routes()] if has_fold_tools else []),
                Route(MCP_PATH, endpoint=pages.no_stream, methods=["GET", "DELETE"]),
                Route(f"{MCP_PATH}/tools/call", endpoint=pages.no_tool_path, methods=["POST"]),
                Route(f"{MCP_PATH}/tools/list", endpoint=pages.tools, methods=["GET"]),
                Route("/v1/daemon", endpoint=pages.daemon, methods=["GET"]),
                Route("/healthz", endpoint=pages.healthz, methods=["GET"]),
                Route("/readyz", endpoint=pages.readyz, methods=["GET"]),
                Route("/metrics", endpoint=pages.metrics, methods=["GET"]),
            ],
            lifespan=self._run,
            exception_handlers={404: _not_found, 405: _wrong_method},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(PROXY_PATH):
            route = next((route for prefix, route in self._proxied.items() if path.startswith(prefix)), None)
        else:
            route = self._posts.get(path) if scope.get("method") == "POST" else None
        if route is None:
            await super().__call__(scope, receive, send)
        else:
            scope["route"] = route
            await route.app(scope, receive, send)

    @asynccontextmanager
    async def _run(self, _app: Starlette) -> AsyncIterator[None]:
        """Connect to the store before the first request, and close everything after the last."""
        await _connect_store(self._services)
        maintenance = asyncio.create_task(_maintain(self._services))
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._close(maintenance)
            except TimeoutError:
                log("daemon.close_cut", "error", after_s=CLOSE_TIMEOUT_S)

    async def _close(self, maintenance: asyncio.Task[None]) -> None:
        maintenance.cancel()
        with suppress(asyncio.CancelledError):
            await maintenance
        await self._proxy.close()
        try:
            await self._services.fold.close()
        finally:
            await self._services.resolvers.close()


def _rfc3339(at_s: float) -> str:
    return timestamp(datetime.fromtimestamp(at_s, UTC))


class StatusPages:
    """Discovery, health and metrics."""

    def __init__(self, tools: Sequence[Tool], services: DaemonServices) -> None:
        self._services = services
        self._started_at = _rfc3339(time.time())
        self._checking = asyncio.Lock()
        self._checked_s = -READY_CACHED_S
        self._is_ready = False
        listed = [{key: value for key, value in describe_tool(tool).items() if key != "annotations"} for tool in tools]
        self._discovery = encode({"tools": listed})

    async def tools(self, _request: Request) -> Response:
        """The tools and their schemas, for programs without an MCP client."""
        return Response(self._discovery, media_type=JSON)

    async def daemon(self, _request: Request) -> Response:
        """The daemon's version and start, when each host last reported, and when the proxy last forwarded a request."""
        metrics = self._services.metrics
        body: dict[str, Encodable] = {
            "version": __version__,
            "started_at": self._started_at,
            "hosts": {host: _rfc3339(at_s) for host, at_s in sorted(metrics.last_report_s.items())},
            "proxy": {api: _rfc3339(at_s) for api, at_s in sorted(metrics.last_proxied_s.items())},
        }
        return Response(encode(body), media_type=JSON)

    async def healthz(self, request: Request) -> Response:
        """Whether the process answers; needs no token. With `?challenge=TEXT`, the proof that it is your daemon."""
        challenge = request.query_params.get("challenge", "")
        port = (request.scope.get("server") or ("", 0))[1]
        proof = find_proof(proof_folder(os.environ), port, challenge) if challenge and port else ""
        return PlainTextResponse(f"ok\n{proof}\n" if proof else "ok\n")

    async def readyz(self, _request: Request) -> Response:
        """Whether the store accepts commits, 503 if not; needs no token."""
        async with self._checking:
            if time.monotonic() - self._checked_s >= READY_CACHED_S:
                self._is_ready = await self._check()
                self._checked_s = time.monotonic()
        if self._is_ready and not self._services.fold.reports.is_unavailable:
            unseen = self._services.fold.sessions.unseen_time()
            return PlainTextResponse("ready\n" + (CLOCK_AHEAD.format(*unseen) if unseen else ""))
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
            self._services.metrics.sessions_open.set(await self._services.fold.store.count())
        self._services.metrics.hook_waiting.set(self._services.fold.reports.waiting)
        page, content_type = self._services.metrics.render()
        return Response(page, headers={"content-type": content_type})

    async def no_tool_path(self, _request: Request) -> Response:
        """There is no path for tool calls: 404, with what to use instead."""
        message = (
            "Tools are called by POST /mcp with a JSON-RPC request whose method is tools/call; POST /v1/operations "
            "records an operation without MCP."
        )
        return error_response(RequestError(404, "not_found", message))

    async def no_stream(self, _request: Request) -> Response:
        """There is no stream and no session to end: 405."""
        message = "This server has no stream and keeps no session: POST to it."
        return error_response(RequestError(405, "method_not_allowed", message, [(b"allow", b"POST")]))


async def _connect_store(services: DaemonServices) -> None:
    """Connect to the store. If it is unavailable, calls fail until it is back; if it refuses us, the start fails."""
    try:
        await services.fold.store.reach()
    except StoreUnavailable:
        pass
    except BaseException:
        await services.fold.close()
        raise


async def _maintain(services: DaemonServices) -> None:
    """End idle sessions and delete expired data, for as long as the daemon runs."""
    every_s = min(MAINTENANCE_EVERY_MAX_S, services.fold.policy.idle_s / 2)
    deleted_s = -DELETE_EXPIRED_EVERY_S
    logged: tuple[str, str] | None = None
    while True:
        try:
            ended = await services.fold.end_idle()
            unseen = services.fold.sessions.unseen_time()
            if unseen and unseen != logged:
                log("clock.ahead", "warning", seen=unseen[0], clock=unseen[1])
            logged = unseen
            if ended:
                log("sessions.ended", count=ended)
                services.metrics.sessions("ended").inc(ended)
            if time.monotonic() - deleted_s >= DELETE_EXPIRED_EVERY_S:
                await services.fold.forget()
                deleted_s = time.monotonic()
            await services.fold.recalls.maintain()
        except StoreUnavailable:
            # Calls report that the store is unavailable.
            pass
        except Exception as problem:
            log("tidy.failed", "error", exception=type(problem).__name__, raised_at=place_of(problem))
        await asyncio.sleep(every_s)


async def _not_found(_request: Request, _problem: Exception) -> Response:
    message = (
        "There is nothing here; the dashboard is at /, MCP at /mcp, models behind /proxy/anthropic and "
        "/proxy/openai/v1, and everything else below /v1."
    )
    return error_response(RequestError(404, "not_found", message))


async def _wrong_method(_request: Request, problem: Exception) -> Response:
    allowed = (getattr(problem, "headers", None) or {}).get("Allow", "")
    headers = [(b"allow", allowed.encode("ascii"))] if allowed else []
    return error_response(RequestError(405, "method_not_allowed", f"Use {allowed or 'another method'} here.", headers))


class DashboardFiles:
    def __init__(self) -> None:
        self._files = {
            file.name: (file.read_bytes(), TYPES[suffix])
            for file in files("contextfold").joinpath("web").iterdir()
            if (suffix := "." + file.name.rpartition(".")[2]) in TYPES
        }

    def routes(self) -> list[Route]:
        return [
            Route(PAGE_PATH, endpoint=self.page, methods=["GET"]),
            Route(f"{WEB_PATH}{{name}}", endpoint=self.file, methods=["GET"]),
        ]

    async def page(self, _request: Request) -> Response:
        """The dashboard."""
        return self._response(PAGE)

    async def file(self, request: Request) -> Response:
        """The dashboard's script and style."""
        return self._response(request.path_params["name"])

    def _response(self, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return error_response(RequestError(404, "not_found", "There is no such file; the dashboard is at /."))
        content, content_type = file
        return Response(content, headers={"content-type": content_type, **_HEADERS})
