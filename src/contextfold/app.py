"""The composition root: settings in, services out. The one module that names the concrete stores and scrubber."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

from contextfold.errors import FoldError
from contextfold.fold.accounting import Thresholds
from contextfold.fold.advice import AdviceSettings
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionRolledBack,
    SessionStarted,
    WorkFolded,
)
from contextfold.fold.model_catalog import MODELS, ModelCatalog, ModelsInvalid, TokenPrices, parse_models
from contextfold.fold.service.activity import Activity
from contextfold.fold.service.callers import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.policy import FoldPolicy
from contextfold.fold.service.reports import LOST, PROXY
from contextfold.fold.session import SessionLimits
from contextfold.scrub.rules import RulesInvalid
from contextfold.scrub.scrubber import Scrubber
from contextfold.scrub.standard import standard_scrubber
from contextfold.serve.http.bearer_tokens import LOCAL_OWNER
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS, caller_from, refused
from contextfold.serve.mcp.fold_tools import call as run_fold_tool
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS
from contextfold.serve.mcp.tools import Answer, FoldTool, Refusal
from contextfold.settings import DaemonSettings, FoldSettings, SettingsError
from contextfold.stores.memory import MemoryStore
from contextfold.stores.sqlite.store import SqliteStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.fold.moving import MovingTarget
    from contextfold.fold.store import Store
    from contextfold.serve.http.bearer_tokens import TokenFile
    from contextfold.serve.http.guard import Guard
    from contextfold.serve.mcp.tools import Tool
    from contextfold.serve.ops.metrics import Metrics
    from contextfold.serve.ops.tracing import Tracer

TIDY_EVERY_S = 60.0
# Relative prices are in hundredths of an input token.
INPUT_PERCENT = 100
REASONS_MOST = 8  # that are told of one time the store is away
Result = TypeVar("Result")


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
    )


def models_of(settings: FoldSettings) -> ModelCatalog:
    path = settings.models_file
    if not path:
        return MODELS
    import tomllib

    try:
        with open(path, "rb") as file:
            return MODELS.with_models(parse_models(tomllib.load(file)))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"cannot read the models {path}: {problem}") from None
    except ModelsInvalid as problem:
        raise SettingsError(f"the models {path}: {problem}") from None


def scrubber_of(settings: FoldSettings) -> Scrubber:
    path = settings.scrub_allowlist
    if not path:
        return standard_scrubber()
    try:
        with open(path, encoding="utf-8") as file:
            return standard_scrubber(file.read())
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(f"cannot read the allowlist {path}: {problem}") from None
    except RulesInvalid as problem:
        raise SettingsError(f"the allowlist {path}: {problem}") from None


def fold_service(settings: FoldSettings, *, may_migrate: bool = True) -> FoldService:
    scrubber = scrubber_of(settings)
    return FoldService(open_store(settings, may_migrate=may_migrate), scrubber, policy_of(settings))


def open_store(
    settings: FoldSettings, *, may_migrate: bool = True, tell: Callable[[str], None] = lambda _: None
) -> Store:
    """A file is opened here and now; to NATS it is connected when the store is first asked for something.

    `tell` hears what becomes of the connection.
    """
    if settings.nats is None:
        return SqliteStore.open(settings.store, may_migrate=may_migrate)
    with _nats_extra():
        from contextfold.stores.nats.connection import Place
        from contextfold.stores.nats.store import NatsStore
    place = Place(**settings.nats._asdict())
    return NatsStore(place, idle_s=settings.session_idle_secs, may_make=may_migrate, tell=tell)


async def open_for_moving(settings: FoldSettings, *, is_source: bool) -> MovingTarget:
    """A store whose sessions are moved, all of them: from there, where it must be already, or to there."""
    if settings.nats is None:
        from contextfold.stores.sqlite.moving import SqliteMoving

        return (SqliteMoving.open_source if is_source else SqliteMoving.open_target)(settings.store)
    with _nats_extra():
        from contextfold.stores.nats.connection import Place
        from contextfold.stores.nats.moving import NatsMoving
    place = Place(**settings.nats._asdict())
    return await NatsMoving.open(place, idle_s=settings.session_idle_secs, is_source=is_source)


@contextmanager
def _nats_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] != "nats":
            raise
        raise SettingsError(
            "a store on NATS needs the package's `nats` extra: pip install 'contextfold[nats]'"
        ) from None


class FoldDesk:
    """Folding for a process that does one thing at a time: a stdio server's worker, a command."""

    def __init__(self, settings: FoldSettings, *, may_migrate: bool = True) -> None:
        self.service = fold_service(settings, may_migrate=may_migrate)
        self._runner = asyncio.Runner()
        self._tidied_s = -TIDY_EVERY_S

    def call(self, tool: FoldTool, arguments: Mapping[str, object], meta: Mapping[str, object]) -> Answer | Refusal:
        return self.run(self._call(tool, arguments, meta))

    def run(self, work: Awaitable[Result]) -> Result:
        async def working() -> Result:
            return await work

        return self._runner.run(working())

    def close(self) -> None:
        self.run(self.service.store.close())
        self._runner.close()

    async def _call(
        self, tool: FoldTool, arguments: Mapping[str, object], meta: Mapping[str, object]
    ) -> Answer | Refusal:
        try:
            caller = caller_from(LOCAL_OWNER, meta)
        except FoldError as problem:
            return await refused(problem, self.service, Caller(LOCAL_OWNER), {})
        await self._tidy()
        answer = await run_fold_tool(tool, self.service, caller, arguments)
        await self.service.store.settle()  # between calls nothing of this process runs
        return answer

    async def _tidy(self) -> None:
        """What a daemon does in the background; nobody may be running one."""
        now_s = time.monotonic()
        if now_s - self._tidied_s >= TIDY_EVERY_S:
            self._tidied_s = now_s
            with suppress(FoldError):  # the call itself will say so
                await self.service.end_idle()
                await self.service.forget()


def serve_daemon(settings: DaemonSettings, on_listening: Callable[[str], None]) -> None:
    """Listen and answer until a signal."""
    from contextfold.serve.http.bearer_tokens import TokenFile
    from contextfold.serve.http.server import check_may_listen, run
    from contextfold.serve.ops.logs import log, take_over

    check_may_listen(settings.host, bool(settings.token_file))
    # Read before anything listens: a daemon whose tokens cannot be read must not start.
    path = settings.token_file
    tokens = TokenFile(path, lambda text: log("tokens", "warning", text=text)) if path else None
    take_over()
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
    from contextfold.serve.ops.tracing import Tracer

    try:
        return Tracer(settings.otlp_endpoint)
    except SettingsError as problem:
        if settings.otlp_is_asked_for:
            raise
        log("traces.off", "warning", reason=str(problem))
        return None


def _guarded(settings: DaemonSettings, tokens: TokenFile | None, tracer: Tracer | None) -> Guard:
    from contextfold.serve.http.guard import Limits as EdgeLimits
    from contextfold.serve.http.limits import Buckets, HostRule, RateLimit
    from contextfold.serve.http.mcp_endpoint import Services
    from contextfold.serve.http.routes import StatingGuard, routes_of
    from contextfold.serve.ops.logs import log
    from contextfold.serve.ops.metrics import Metrics
    from contextfold.serve.ops.tracing import traced
    from contextfold.serve.resolvers import Resolvers

    toolsets: dict[str, tuple[Tool, ...]] = {"resolve": RESOLVE_TOOLS, "fold": FOLD_TOOLS}
    tools = [tool for name in settings.server.tools for tool in toolsets[name]]
    metrics = Metrics(tool.name for tool in tools)
    # Without the fold tools nothing is kept, and no file is needed for it.
    scrubber = scrubber_of(settings.fold)
    store: Store = open_store(settings.fold, tell=_Told()) if "fold" in settings.server.tools else MemoryStore()
    store = store if tracer is None else traced(store, tracer)
    policy = policy_of(settings.fold)
    fold = FoldService(store, scrubber, policy, note=lambda activity: _count(activity, metrics, tracer))
    if settings.proxy.anthropic.goes_direct or settings.proxy.openai.goes_direct:
        log("proxy.variable_ignored", "warning", variable="HTTPS_PROXY")
    buckets = Buckets(RateLimit(settings.rate_per_second, settings.rate_burst))
    services = Services(fold, Resolvers(settings.server), buckets, metrics, tracer)
    return StatingGuard(
        routes_of(tools, services, body_max_bytes=settings.body_max_bytes, proxied=settings.proxy),
        no_state=fold.no_state,
        hosts=HostRule(settings.host, settings.allow_hosts),
        metrics=metrics,
        buckets=buckets,
        tokens=tokens,
        tracer=tracer,
        limits=EdgeLimits(
            in_flight=settings.requests_max,
            body_bytes=settings.body_max_bytes,
            proxied_body_bytes=settings.proxy.body_max_bytes,
        ),
    )


def _count(activity: Activity, metrics: Metrics, tracer: Tracer | None) -> None:
    for rule in activity.rules:
        metrics.redacted(rule)
    for _ in range(activity.conflicts):
        metrics.store_conflict()
    if activity.store_failed:
        metrics.store_error()
    if activity.events:
        metrics.store_commit()
    for event in activity.events:
        _count_event(event, metrics)
    _count_reports(activity, metrics, tracer)


def _count_reports(activity: Activity, metrics: Metrics, tracer: Tracer | None) -> None:
    for (host, outcome), times in activity.reports.items():
        if host != PROXY:  # who proxies counts its requests itself
            metrics.hook_report(host, outcome, times)
        if outcome == LOST:
            _tell_lost(host, times, activity.reports_failed)
    if activity.reports_wait is not None:
        _tell_waiting(activity.reports_wait)
    if activity.reports_took_s is not None:
        metrics.hook_write_took(activity.reports_took_s)
        if tracer is not None:
            tracer.reports_written(activity.reports, activity.reports_took_s)


class _Told:
    """Says in the log that the store's connection went and came; why, once for each reason until it comes."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, text: str) -> None:
        from contextfold.serve.ops.logs import log

        reason = text.removeprefix("away: ")
        if text == "connected":
            log("store.connected")
            self._reasons.clear()
        elif reason not in self._reasons and len(self._reasons) < REASONS_MOST:
            log("store.away", "warning", reason=reason)
            self._reasons.add(reason)


def _tell_waiting(is_away: bool) -> None:
    from contextfold.serve.ops.logs import log

    log("reports.waiting" if is_away else "reports.tried", "warning" if is_away else "info")


def _tell_lost(host: str, times: int, problem: Exception | None) -> None:
    from contextfold.common.exception_location import place_of
    from contextfold.serve.ops.logs import log

    why = {"exception": type(problem).__name__, "raised_at": place_of(problem)} if problem else {}
    log("reports.lost", "error", host=host, count=times, **why)


def _count_event(event: Event, metrics: Metrics) -> None:
    match event:
        case WorkFolded():
            metrics.folded(event.tokens_folded, event.tokens_folded - event.summary_tokens)
            metrics.branch("folded")
        case BranchFolded():
            metrics.folded(event.tokens_folded, event.tokens_folded - event.summary_tokens)
            metrics.branch("folded_unfinished" if event.forced else "folded")
        case OperationCompleted():
            metrics.operation(event.source, event.tokens, failed=event.failed)
        case BranchCreated():
            metrics.branch("created")
        case BranchDiscarded():
            metrics.branch("discarded")
        case SessionStarted():
            metrics.session("started")
        case SessionRolledBack():
            metrics.session("rolled_back")
