"""The daemon's metrics, for Prometheus. Knows numbers and fixed names; no owner, project or session is a label.

Labels come from closed sets: a tool that does not exist is `unknown`, a method that is not HTTP's is `other`. So a
caller can neither fill the memory with series nor write into them. `ActivityRecorder` counts, logs and traces the
activity of the fold service.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Generic, NamedTuple, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from contextfold import __version__
from contextfold.errors import place_of
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    MissCause,
    OperationCompleted,
    RequestSent,
    SessionRolledBack,
    SessionStarted,
    WorkFolded,
)
from contextfold.fold.sent_request import RequestReport
from contextfold.fold.service.reports import LOST, Activity
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.tracing import Tracer

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
UNKNOWN_TOOL = "unknown"
# Ids of redaction rules come from a file. Those beyond this number are counted as `other`.
RULES_MAX = 1000
HOSTS = ("claude-code",)
# The sources of an operation's figures.
SOURCES = ("proxy", "hook", "reported")
OPERATION_OUTCOMES = ("ok", "failed")
APIS = ("anthropic", "openai-chat", "openai-responses", "gemini")
DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class MetricDescription(NamedTuple):
    """A metric as the reference lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


Metric = TypeVar("Metric", Counter, Histogram)


class MetricSeries(Generic[Metric]):
    """The series of a metric, by the values of their labels.

    Where the values are known, all series exist from the start, because a rate needs a zero, and any other value is
    counted as `other`.
    """

    def __init__(self, metric: Metric, known: Mapping[str, tuple[str, ...]]) -> None:
        self._metric: Metric = metric
        self._known = tuple(known.values())
        for values in product(*self._known) if known else ():
            metric.labels(*values)

    def __call__(self, *values: str) -> Metric:
        if self._known:
            values = tuple(_label_among(known, value) for known, value in zip(self._known, values, strict=True))
        metric: Metric = self._metric.labels(*values) if values else self._metric
        return metric


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, tools: Iterable[str]) -> None:
        # Without this each counter has a second series with the time at which it was made.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._tools = frozenset(tools)
        self._rules: set[str] = set()
        # The times of the last report of each host, and of the last request of each API through the proxy.
        self.last_report_s: dict[str, float] = {}
        self.last_proxied_s: dict[str, float] = {}
        self._registry = CollectorRegistry()
        self.figures: list[MetricDescription] = []
        ProcessCollector(registry=self._registry)
        self._gauge("contextfold_build_info", "What is running.", "version").labels(__version__).set(1)
        self._edge()
        self._calls_and_store()
        self._sessions_and_branches()
        self._hooks()
        self._proxy()

    def _edge(self) -> None:
        self.requests = self._counter("contextfold_http_requests", "Requests answered.", "route", "method", "status")
        self.durations = self._histogram(
            "contextfold_http_request_duration_seconds",
            "From a request's head to the end of its answer; streams and proxied requests are not in it.",
            "route",
        )
        self.in_flight = self._gauge("contextfold_http_requests_in_flight", "Requests being answered.")
        self.streams = self._gauge("contextfold_http_streams_open", "Event streams being sent, and proxied requests.")
        self.refusals = self._counter("contextfold_http_refusals", "Requests refused at the edge, by reason.", "reason")

    def _calls_and_store(self) -> None:
        self._calls = self._counter("contextfold_tool_calls", "Tool calls, by outcome.", "tool", "outcome")
        self._call_durations = self._histogram("contextfold_tool_duration_seconds", "Duration of tool calls.", "tool")
        self._redactions = self._counter("contextfold_redactions", "Secrets redacted, by rule.", "rule")
        self.store = self._counter(
            "contextfold_store_operations",
            "Attempts to append to a session: commit, conflict (decided again) or error.",
            "outcome",
        )

    def _sessions_and_branches(self) -> None:
        self.folded = self._counter("contextfold_tokens_folded", "Tokens of branches that were folded.")
        self.saved = self._gauge(
            "contextfold_tokens_saved",
            "Tokens of folded branches less those of their summaries, since the start; a long summary lowers it.",
        )
        self.recorded = self._counter(
            "contextfold_tokens_recorded",
            "Tokens of the operations recorded, by where the figure comes from: proxy, hook or reported.",
            source=SOURCES,
        )
        self.operations = self._counter(
            "contextfold_operations",
            "Operations recorded, by where their figures come from, and whether they were ok or failed.",
            source=SOURCES,
            outcome=OPERATION_OUTCOMES,
        )
        self.branches = self._counter(
            "contextfold_branches",
            "Branches created, folded, folded_unfinished with a branch around them, or discarded by a rollback.",
            change=("created", "folded", "folded_unfinished", "discarded"),
        )
        self.sessions_open = self._gauge("contextfold_sessions_open", "Sessions that have not ended.")
        self.sessions = self._counter(
            "contextfold_sessions",
            "Sessions started, rolled_back, or ended by the daemon for being idle.",
            change=("started", "rolled_back", "ended"),
        )

    def _hooks(self) -> None:
        self._reports = self._counter(
            "contextfold_hook_reports",
            "Hook reports, by host and outcome.",
            host=HOSTS,
            outcome=("recorded", "repeated", "ignored", "refused", "full", "lost"),
        )
        self.hook_waiting = self._gauge("contextfold_hook_reports_waiting", "Reports received and not yet written.")
        self.hook_write_durations = self._histogram(
            "contextfold_hook_write_duration_seconds",
            "Duration of redacting, counting and committing hook reports, several at a time.",
        )

    def _proxy(self) -> None:
        self._proxied = self._counter(
            "contextfold_proxy_requests",
            "Requests to a model, by what became of them: folded, unfolded (nothing to fold) or failed_open.",
            api=APIS,
            outcome=("folded", "unfolded", "failed_open"),
        )
        self._failed_open = self._counter(
            "contextfold_proxy_failed_open",
            "Requests of which something passed unfolded, by why first.",
            "reason",
        )
        self._dropped = self._counter(
            "contextfold_proxy_tokens_dropped", "Tokens left out of requests to a model, each time they were.", api=APIS
        )
        self.upstream_errors = self._counter(
            "contextfold_proxy_upstream_errors",
            "Requests that a provider did not answer, or not to the end, by why.",
            upstream=("anthropic", "openai", "gemini"),
            kind=("unreachable", "timeout", "broken", "busy", "cut"),
        )
        self.projections = self._histogram(
            "contextfold_proxy_projection_duration_seconds", "Of looking for what is folded in a request.", api=APIS
        )
        self.misses = self._counter(
            "contextfold_proxy_cache_misses",
            "Requests before which the provider's cache had lost a part of the prompt, by why. A `bug` is ours.",
            cause=tuple(MissCause),
        )
        self.lost = self._counter(
            "contextfold_proxy_cache_tokens_lost",
            "Tokens that were paid for again after it, by why.",
            cause=tuple(MissCause),
        )

    def tool_call(self, tool: str, outcome: str, seconds: float) -> None:
        """`outcome` is `ok` or an error code."""
        known = tool if tool in self._tools else UNKNOWN_TOOL
        self._calls(known, outcome).inc()
        self._call_durations(known).observe(seconds)

    def hook_report(self, host: str, outcome: str, times: int = 1) -> None:
        self._reports(host, outcome).inc(times)
        self.last_report_s[_label_among(HOSTS, host)] = time.time()

    def count_proxied(self, api: str, *, tokens_dropped: int, is_folded: bool, reason: str) -> None:
        """`reason` is a fixed word for what was not folded; empty if there was none."""
        self._proxied(api, "folded" if is_folded else "failed_open" if reason else "unfolded").inc()
        self.last_proxied_s[_label_among(APIS, api)] = time.time()
        self._dropped(api).inc(tokens_dropped)
        if reason:
            self._failed_open(reason).inc()

    def may_fail_open(self, reasons: tuple[str, ...]) -> None:
        """Create the series for all reasons why something passes unfolded."""
        for reason in reasons:
            self._failed_open(reason)

    def count_redaction(self, rule: str) -> None:
        if len(self._rules) < RULES_MAX:
            self._rules.add(rule)
        self._redactions(_label_among(self._rules, rule)).inc()

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        return prometheus_client.generate_latest(self._registry), prometheus_client.CONTENT_TYPE_LATEST

    def _counter(self, name: str, help: str, *labels: str, **known: tuple[str, ...]) -> MetricSeries[Counter]:
        """A counter with `labels` of any values, or with labels whose values are `known`."""
        names = self._describe(f"{name}_total", "counter", help, *labels, *known)
        return MetricSeries(Counter(name, help, names, registry=self._registry), known)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(name, help, self._describe(name, "gauge", help, *labels), registry=self._registry)

    def _histogram(self, name: str, help: str, *labels: str, **known: tuple[str, ...]) -> MetricSeries[Histogram]:
        names = self._describe(name, "histogram", help, *labels, *known)
        return MetricSeries(Histogram(name, help, names, buckets=DURATIONS_S, registry=self._registry), known)

    def _describe(self, name: str, kind: str, help: str, *labels: str) -> tuple[str, ...]:
        self.figures.append(MetricDescription(name, kind, labels, help))
        return labels


def _label_among(known: Collection[str], label: str) -> str:
    return label if label in known else OTHER


# At most this many reasons are logged while the store is unavailable.
REASONS_MAX = 8


class ActivityRecorder:
    """Counts the activity of the fold service."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None) -> None:
        self._metrics, self._tracer = metrics, tracer

    def __call__(self, activity: Activity) -> None:
        for rule in activity.rules:
            self._metrics.count_redaction(rule)
        if activity.conflicts:
            self._metrics.store("conflict").inc(activity.conflicts)
        if activity.store_failed:
            self._metrics.store("error").inc()
        if activity.events:
            self._metrics.store("commit").inc()
        for event in activity.events:
            self._count_event(event)
        if activity.reports or activity.reports_wait is not None or activity.reports_took_s is not None:
            self._count_reports(activity)

    def _count_event(self, event: Event) -> None:
        metrics = self._metrics
        match event:
            case BranchFolded() | WorkFolded():
                metrics.folded().inc(event.tokens_folded)
                metrics.saved.inc(event.tokens_folded - event.summary_tokens)
                is_unfinished = isinstance(event, BranchFolded) and event.forced
                metrics.branches("folded_unfinished" if is_unfinished else "folded").inc()
            case OperationCompleted():
                metrics.operations(event.source, OPERATION_OUTCOMES[event.failed]).inc()
                metrics.recorded(event.source).inc(event.tokens)
            case RequestSent():
                for miss in event.misses:
                    metrics.misses(miss.cause).inc()
                    metrics.lost(miss.cause).inc(miss.tokens)
            case BranchCreated():
                metrics.branches("created").inc()
            case BranchDiscarded():
                metrics.branches("discarded").inc()
            case SessionStarted():
                metrics.sessions("started").inc()
            case SessionRolledBack():
                metrics.sessions("rolled_back").inc()

    def _count_reports(self, activity: Activity) -> None:
        for (host, outcome), times in activity.reports.items():
            # The proxy counts its requests itself.
            if host != RequestReport.reporter:
                self._metrics.hook_report(host, outcome, times)
            if outcome == LOST:
                problem = activity.reports_failed
                why = {"exception": type(problem).__name__, "raised_at": place_of(problem)} if problem else {}
                log("reports.lost", "error", host=host, count=times, **why)
        if activity.reports_wait is not None:
            waits = activity.reports_wait
            log("reports.waiting" if waits else "reports.tried", "warning" if waits else "info")
        if activity.reports_took_s is not None:
            self._metrics.hook_write_durations().observe(activity.reports_took_s)
            if self._tracer is not None:
                self._tracer.record_reports(activity.reports, activity.reports_took_s)


class StoreConnectionLog:
    """Logs when the store's connection is lost and when it is back; each reason once until it is back."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, reason: str) -> None:
        """`reason` says why there is no connection; it is empty when there is one."""
        if not reason:
            log("store.connected")
            self._reasons.clear()
        elif reason not in self._reasons and len(self._reasons) < REASONS_MAX:
            log("store.away", "warning", reason=reason)
            self._reasons.add(reason)
