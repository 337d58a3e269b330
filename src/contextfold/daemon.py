"""Composes the daemon from its settings, and runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from contextfold.app import make_policy, make_scrubber, open_store
from contextfold.common.canonical import encode
from contextfold.errors import SettingsError
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.session import EMPTY
from contextfold.fold.store import Store
from contextfold.serve.http.bearer_tokens import TokenFile
from contextfold.serve.http.exchange import RequestLimits
from contextfold.serve.http.guard import Buckets, Guard, HostRule
from contextfold.serve.http.mcp_endpoint import DaemonServices
from contextfold.serve.http.routes import DaemonApplication
from contextfold.serve.http.server import check_may_listen, run
from contextfold.serve.mcp.protocol import tools_of
from contextfold.serve.ops.activity_recorder import ActivityRecorder, StoreConnectionLog
from contextfold.serve.ops.logs import log, take_over
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.ops.tracing import TracedStore, Tracer
from contextfold.serve.resolvers import Resolvers
from contextfold.settings import DaemonSettings, offers_folding


def serve_daemon(settings: DaemonSettings, on_listening: Callable[[str], None]) -> None:
    """Run the daemon until a signal arrives."""
    check_may_listen(settings.host, bool(settings.token_file))
    # A daemon must not start if its tokens cannot be read.
    path = settings.token_file
    tokens = TokenFile(path, lambda text: log("tokens", "warning", text=text)) if path else None
    take_over()
    if "resolve" in settings.server.tools:
        root = settings.server.cache_root
        if settings.makes_cache_root:
            with suppress(OSError):
                os.makedirs(root, mode=0o700, exist_ok=True)
        if not os.path.isdir(root):
            log("cache_root.missing", "warning", path=root)
    tracer = _make_tracer(settings)
    try:
        run(
            lambda: _make_guard(settings, tokens, tracer),
            host=settings.host,
            port=settings.port,
            on_listening=on_listening,
        )
    finally:
        if tracer is not None:
            tracer.close()


def _make_tracer(settings: DaemonSettings) -> Tracer | None:
    if not settings.otlp_endpoint:
        return None
    try:
        from contextfold.serve.ops.otel import OtelTracer
    except ImportError:
        reason = "traces need the package's `otel` extra: pip install 'contextfold[otel]', or leave the endpoint out"
        if settings.otlp_is_asked_for:
            raise SettingsError(reason) from None
        log("traces.off", "warning", reason=reason)
        return None
    return OtelTracer(settings.otlp_endpoint)


def _make_guard(settings: DaemonSettings, tokens: TokenFile | None, tracer: Tracer | None) -> Guard:
    tools = tools_of(settings.server.tools)
    metrics = Metrics(tool.name for tool in tools)
    scrubber = make_scrubber(settings.fold)
    if offers_folding(settings.server.tools):
        store: Store = open_store(settings.fold, on_change=StoreConnectionLog())
    else:
        store = cast("Store", NoStore())
    store = store if tracer is None else cast("Store", TracedStore(store, tracer))
    fold = FoldService(store, scrubber, make_policy(settings.fold), note=ActivityRecorder(metrics, tracer))
    proxy = settings.proxy
    if any(upstream.goes_direct for upstream in (proxy.anthropic, proxy.openai, proxy.gemini)):
        log("proxy.variable_ignored", "warning", variable="HTTPS_PROXY")
    buckets = Buckets(settings.rate_per_second, settings.rate_burst)
    services = DaemonServices(
        fold, Resolvers(settings.server), buckets, metrics, lambda text: scrubber.scrub(text).text, tracer
    )
    return Guard(
        DaemonApplication(tools, services, proxy),
        hosts=HostRule(settings.host, settings.allow_host),
        metrics=metrics,
        buckets=buckets,
        tokens=tokens,
        tracer=tracer,
        state=encode(fold.summarise(EMPTY)),
        limits=RequestLimits(
            in_flight=settings.requests_max,
            body_bytes=settings.body_max_bytes,
            proxied_body_bytes=proxy.body_max_bytes,
        ),
    )


class NoStore:
    """The store of a daemon without the folding tools: it is always empty.

    Such a daemon asks whether its store is ready and sweeps it. Nothing calls the other methods of the port.
    """

    async def expire(self, idle_since: str, at: str) -> int:
        return 0

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        pass

    async def unindexed(self, owner: str | None, limit: int) -> tuple[()]:
        return ()

    async def count(self, owner: str | None = None) -> int:
        return 0

    async def reach(self) -> None:
        pass

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass
