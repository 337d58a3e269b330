"""The composition root: makes services from settings. The only module that names the concrete stores and scrubber.

What only a server or a store on NATS needs is imported by the functions that make it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from contextfold.common.canonical import encode
from contextfold.fold.model_catalog import MODELS, ModelCatalog, ModelsInvalid, TokenPrices, parse_models
from contextfold.fold.policy import AdviceSettings, FoldPolicy, Thresholds
from contextfold.fold.ports.store import Store
from contextfold.fold.service.stored_sessions import StoredSessions
from contextfold.fold.session import EMPTY, SessionLimits
from contextfold.settings import DaemonSettings, FoldSettings, Settings, SettingsError, offers_folding
from contextfold.stores.no_store import NoStore
from contextfold.stores.sqlite.reader import SqliteReader

if TYPE_CHECKING:
    # Optional extras, and the libraries of the daemon, which commands do not import.
    from contextfold.fold.service.fold_service import FoldService
    from contextfold.scrub.scrubber import Scrubber
    from contextfold.serve.http.bearer_tokens import TokenFile
    from contextfold.serve.http.guard import Guard
    from contextfold.serve.ops.tracing import Tracer
    from contextfold.stores.nats.store import NatsStore
    from contextfold.stores.sqlite.store import SqliteStore

# Relative prices are in hundredths of an input token.
INPUT_PERCENT = 100


def policy_of(settings: FoldSettings) -> FoldPolicy:
    return FoldPolicy(
        SessionLimits(
            settings.context_limit or None,
            settings.hard_limit,
            settings.branch_depth,
            settings.branches_per_session,
        ),
        Thresholds(settings.warn_medium_percent, settings.warn_high_percent),
        settings.token_counter,
        settings.session_idle_secs,
        settings.archive_days,
        settings.summary_days,
        AdviceSettings(settings.branch_reminder, settings.branch_limit_tokens),
        models_of(settings),
        TokenPrices(
            INPUT_PERCENT,
            settings.price_output_percent,
            settings.price_cache_read_percent,
            settings.price_cache_write_percent,
            settings.price_cache_write_1h_percent,
        ),
        settings.recall_at_start,
    )


def models_of(settings: FoldSettings) -> ModelCatalog:
    path = settings.models_file
    if not path:
        return MODELS

    try:
        with open(path, "rb") as file:
            return MODELS.with_models(parse_models(tomllib.load(file)))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"cannot read the models {path}: {problem}") from None
    except ModelsInvalid as problem:
        raise SettingsError(f"the models {path}: {problem}") from None


def scrubber_of(settings: FoldSettings) -> Scrubber:
    from contextfold.scrub.rules import AllowlistInvalid
    from contextfold.scrub.scrubber import standard_scrubber

    path = settings.scrub_allowlist
    if not path:
        return standard_scrubber()
    try:
        with open(path, encoding="utf-8") as file:
            return standard_scrubber(file.read())
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(f"cannot read the allowlist {path}: {problem}") from None
    except AllowlistInvalid as problem:
        raise SettingsError(f"the allowlist {path}: {problem}") from None


def open_store(
    settings: FoldSettings, *, may_migrate: bool = True, on_change: Callable[[str], None] = lambda _: None
) -> SqliteStore | NatsStore:
    """Open the store. A file is opened at once; a connection to NATS is made with the first call.

    `on_change` is called when the connection is made or lost.
    """
    if settings.nats is None:
        from contextfold.stores.sqlite.store import SqliteStore

        return SqliteStore(settings.store, may_migrate=may_migrate)
    try:
        from contextfold.stores.nats.store import NatsStore
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] != "nats":
            raise
        raise SettingsError(
            "a store on NATS needs the package's `nats` extra: pip install 'contextfold[nats]'"
        ) from None
    return NatsStore(settings.nats, idle_s=settings.session_idle_secs, may_make=may_migrate, on_change=on_change)


def stored_sessions(settings: FoldSettings) -> StoredSessions:
    """Open a state file for a command that reads. The file is never migrated."""
    return StoredSessions(SqliteReader(settings.store), policy_of(settings))


def fold_service(settings: FoldSettings, store: Store | None = None) -> FoldService:
    """Make the folding service of a process without a daemon."""
    from contextfold.fold.service.fold_service import FoldService

    return FoldService(store or open_store(settings), scrubber_of(settings), policy_of(settings))


def serve_stdio(settings: Settings) -> None:
    """Answer a client on stdin and stdout until it leaves."""
    from contextfold.serve.stdio import serve

    serve(settings, fold_service)


def serve_daemon(settings: DaemonSettings, on_listening: Callable[[str], None]) -> None:
    """Run the daemon until a signal arrives."""
    from contextfold.serve.http.bearer_tokens import TokenFile
    from contextfold.serve.http.server import check_may_listen, run
    from contextfold.serve.ops.logs import log, take_over

    check_may_listen(settings.host, bool(settings.token_file))
    # A daemon must not start if its tokens cannot be read.
    path = settings.token_file
    tokens = TokenFile(path, lambda text: log("tokens", "warning", text=text)) if path else None
    take_over()
    if "resolve" in settings.server.tools and not os.path.isdir(settings.server.cache_root):
        log("cache_root.missing", "warning", path=settings.server.cache_root)
    tracer = _tracer_of(settings)
    try:
        run(
            lambda: _guarded(settings, tokens, tracer),
            host=settings.host,
            port=settings.port,
            on_listening=on_listening,
        )
    finally:
        if tracer is not None:
            tracer.close()


def _tracer_of(settings: DaemonSettings) -> Tracer | None:
    if not settings.otlp_endpoint:
        return None
    from contextfold.serve.ops.logs import log

    try:
        from contextfold.serve.ops.otel import OtelTracer
    except ImportError:
        reason = "traces need the package's `otel` extra: pip install 'contextfold[otel]', or leave the endpoint out"
        if settings.otlp_is_asked_for:
            raise SettingsError(reason) from None
        log("traces.off", "warning", reason=reason)
        return None
    return OtelTracer(settings.otlp_endpoint)


def _guarded(settings: DaemonSettings, tokens: TokenFile | None, tracer: Tracer | None) -> Guard:
    from contextfold.fold.service.fold_service import FoldService
    from contextfold.serve.http.exchange import RequestLimits
    from contextfold.serve.http.guard import Buckets, Guard, HostRule
    from contextfold.serve.http.mcp_endpoint import DaemonServices
    from contextfold.serve.http.routes import DaemonApplication
    from contextfold.serve.mcp.protocol import tools_of
    from contextfold.serve.ops.activity_recorder import ActivityRecorder, StoreConnectionLog
    from contextfold.serve.ops.logs import log
    from contextfold.serve.ops.metrics import Metrics
    from contextfold.serve.ops.tracing import TracedStore
    from contextfold.serve.resolvers import Resolvers

    tools = tools_of(settings.server.tools)
    metrics = Metrics(tool.name for tool in tools)
    scrubber = scrubber_of(settings.fold)
    if offers_folding(settings.server.tools):
        store: Store = open_store(settings.fold, on_change=StoreConnectionLog())
    else:
        store = cast("Store", NoStore())
    store = store if tracer is None else cast("Store", TracedStore(store, tracer))
    fold = FoldService(store, scrubber, policy_of(settings.fold), note=ActivityRecorder(metrics, tracer))
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
