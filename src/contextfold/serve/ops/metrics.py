"""The daemon's metrics, for Prometheus. Knows numbers and fixed names; no owner, project or session is a label.

Labels come from closed sets: a tool that does not exist is `unknown`, a method that is not HTTP's is `other`. So a
caller can neither fill the memory with series nor write into them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from contextfold import __version__
from contextfold.common.record import Record

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
UNKNOWN_TOOL = "unknown"
# Ids of redaction rules come from a file. Those beyond this number are counted as `other`.
RULES_MAX = 1000
# Route templates come from our own table.
ROUTES_MAX = 200
HOSTS = ("claude-code", "cursor", "vscode")
HOOK_OUTCOMES = ("recorded", "repeated", "ignored", "tied", "refused", "full", "lost")
# The sources of an operation's figures.
SOURCES = ("proxy", "hook", "reported")
OPERATION_OUTCOMES = ("ok", "failed")
BRANCH_CHANGES = ("created", "folded", "folded_unfinished", "discarded")
APIS = ("anthropic", "openai-chat", "openai-responses", "gemini")
PROXY_OUTCOMES = ("folded", "unfolded", "failed_open")
UPSTREAMS = ("anthropic", "openai", "gemini")
UPSTREAM_ERRORS = ("unreachable", "timeout", "broken", "busy", "cut")
SESSION_CHANGES = ("started", "rolled_back", "ended")
DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class MetricDescription(Record):
    """A metric as the reference lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, tools: Iterable[str]) -> None:
        # Without this each counter has a second series with the time at which it was made.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._tools = frozenset(tools)
        self._rules: set[str] = set()
        self._routes: set[str] = set()
        self._reasons: tuple[str, ...] = ()
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
        self._requests = self._counter("contextfold_http_requests", "Requests answered.", "route", "method", "status")
        self._durations = self._histogram(
            "contextfold_http_request_duration_seconds",
            "From a request's head to the end of its answer; streams and proxied requests are not in it.",
            "route",
        )
        self.in_flight = self._gauge("contextfold_http_requests_in_flight", "Requests being answered.")
        self.streams = self._gauge("contextfold_http_streams_open", "Event streams being sent, and proxied requests.")
        self._refusals = self._counter(
            "contextfold_http_refusals", "Requests refused at the edge, by reason.", "reason"
        )

    def _calls_and_store(self) -> None:
        self._calls = self._counter("contextfold_tool_calls", "Tool calls, by outcome.", "tool", "outcome")
        self._call_durations = self._histogram("contextfold_tool_duration_seconds", "Duration of tool calls.", "tool")
        self._redactions = self._counter("contextfold_redactions", "Secrets redacted, by rule.", "rule")
        self._store = self._counter(
            "contextfold_store_operations",
            "Attempts to append to a session: commit, conflict (decided again) or error.",
            "outcome",
        )

    def _sessions_and_branches(self) -> None:
        """The metrics of agents. Series of small sets of labels exist from the start, because a rate needs a zero."""
        self._folded = self._counter("contextfold_tokens_folded", "Tokens of branches that were folded.")
        self._saved = self._gauge(
            "contextfold_tokens_saved",
            "Tokens of folded branches less those of their summaries, since the start; a long summary lowers it.",
        )
        self._recorded = self._counter(
            "contextfold_tokens_recorded",
            "Tokens of the operations recorded, by where the figure comes from: proxy, hook or reported.",
            "source",
        )
        self._operations = self._counter(
            "contextfold_operations",
            "Operations recorded, by where their figures come from, and whether they were ok or failed.",
            "source",
            "outcome",
        )
        self._branches = self._counter(
            "contextfold_branches",
            "Branches created, folded, folded_unfinished with a branch around them, or discarded by a rollback.",
            "change",
        )
        self._sessions = self._gauge("contextfold_sessions_open", "Sessions that have not ended.")
        self._session_changes = self._counter(
            "contextfold_sessions", "Sessions started, rolled_back, or ended by the daemon for being idle.", "change"
        )
        for source in SOURCES:
            self._recorded.labels(source)
            for outcome in OPERATION_OUTCOMES:
                self._operations.labels(source, outcome)
        for change in BRANCH_CHANGES:
            self._branches.labels(change)
        for change in SESSION_CHANGES:
            self._session_changes.labels(change)

    def _hooks(self) -> None:
        self._reports = self._counter(
            "contextfold_hook_reports", "Hook reports, by host and outcome.", "host", "outcome"
        )
        self._waiting = self._gauge("contextfold_hook_reports_waiting", "Reports received and not yet written.")
        self._write_durations = self._histogram(
            "contextfold_hook_write_duration_seconds",
            "Duration of redacting, counting and committing hook reports, several at a time.",
        )
        for host in HOSTS:
            for outcome in HOOK_OUTCOMES:
                self._reports.labels(host, outcome)

    def _proxy(self) -> None:
        self._proxied = self._counter(
            "contextfold_proxy_requests",
            "Requests to a model, by what became of them: folded, unfolded (nothing to fold) or failed_open.",
            "api",
            "outcome",
        )
        self._failed_open = self._counter(
            "contextfold_proxy_failed_open",
            "Requests of which something passed unfolded, by why first.",
            "reason",
        )
        self._dropped = self._counter(
            "contextfold_proxy_tokens_dropped", "Tokens left out of requests to a model, each time they were.", "api"
        )
        self._upstream_errors = self._counter(
            "contextfold_proxy_upstream_errors",
            "Requests that a provider did not answer, or not to the end, by why.",
            "upstream",
            "kind",
        )
        self._projections = self._histogram(
            "contextfold_proxy_projection_duration_seconds", "Of looking for what is folded in a request.", "api"
        )
        for api in APIS:
            self._dropped.labels(api)
            self._projections.labels(api)
            for outcome in PROXY_OUTCOMES:
                self._proxied.labels(api, outcome)
        for upstream in UPSTREAMS:
            for kind in UPSTREAM_ERRORS:
                self._upstream_errors.labels(upstream, kind)

    def request(self, route: str, method: str, status: int) -> None:
        self._requests.labels(
            _within(self._routes, route, ROUTES_MAX), method if method in METHODS else OTHER, str(status)
        ).inc()

    def request_took(self, route: str, seconds: float) -> None:
        self._durations.labels(_within(self._routes, route, ROUTES_MAX)).observe(seconds)

    def refusal(self, reason: str) -> None:
        """`reason` is a fixed code, never a caller's input."""
        self._refusals.labels(reason).inc()

    def tool_call(self, tool: str, outcome: str, seconds: float) -> None:
        """`outcome` is `ok` or an error code."""
        known = tool if tool in self._tools else UNKNOWN_TOOL
        self._calls.labels(known, outcome).inc()
        self._call_durations.labels(known).observe(seconds)

    def folded(self, tokens: int, saved: int) -> None:
        self._folded.inc(tokens)
        self._saved.inc(saved)

    def operation(self, source: str, tokens: int, *, failed: bool) -> None:
        source = _among(SOURCES, source)
        self._operations.labels(source, OPERATION_OUTCOMES[failed]).inc()
        self._recorded.labels(source).inc(tokens)

    def branch(self, change: str) -> None:
        """`change` is one of BRANCH_CHANGES."""
        self._branches.labels(_among(BRANCH_CHANGES, change)).inc()

    def session(self, change: str, times: int = 1) -> None:
        """`change` is one of SESSION_CHANGES."""
        self._session_changes.labels(_among(SESSION_CHANGES, change)).inc(times)

    def hook_report(self, host: str, outcome: str, times: int = 1) -> None:
        """`host` is one of HOSTS, `outcome` one of HOOK_OUTCOMES."""
        self._reports.labels(_among(HOSTS, host), _among(HOOK_OUTCOMES, outcome)).inc(times)
        self.last_report_s[_among(HOSTS, host)] = time.time()

    def hook_waiting(self, reports: int) -> None:
        self._waiting.set(reports)

    def hook_write_took(self, seconds: float) -> None:
        self._write_durations.observe(seconds)

    def proxied(self, api: str, *, tokens_dropped: int, is_folded: bool, reason: str) -> None:
        """`reason` is a fixed word for what was not folded; empty if there was none."""
        outcome = "folded" if is_folded else "failed_open" if reason else "unfolded"
        self._proxied.labels(_among(APIS, api), outcome).inc()
        self.last_proxied_s[_among(APIS, api)] = time.time()
        self._dropped.labels(_among(APIS, api)).inc(tokens_dropped)
        if reason:
            self._failed_open.labels(_among(self._reasons, reason)).inc()

    def may_fail_open(self, reasons: tuple[str, ...]) -> None:
        """Create the series for all reasons why something passes unfolded."""
        self._reasons = reasons
        for reason in reasons:
            self._failed_open.labels(reason)

    def projection_took(self, api: str, seconds: float) -> None:
        self._projections.labels(_among(APIS, api)).observe(seconds)

    def upstream_error(self, upstream: str, kind: str) -> None:
        """`upstream` is one of UPSTREAMS, `kind` one of UPSTREAM_ERRORS."""
        self._upstream_errors.labels(_among(UPSTREAMS, upstream), _among(UPSTREAM_ERRORS, kind)).inc()

    def redacted(self, rule: str, times: int = 1) -> None:
        self._redactions.labels(_within(self._rules, rule, RULES_MAX)).inc(times)

    def store(self, outcome: str, times: int = 1) -> None:
        """`outcome` is `commit`, `conflict` or `error`."""
        self._store.labels(outcome).inc(times)

    def sessions_open(self, count: int) -> None:
        self._sessions.set(count)

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        return prometheus_client.generate_latest(self._registry), prometheus_client.CONTENT_TYPE_LATEST

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        self.figures.append(MetricDescription(f"{name}_total", "counter", labels, help))
        return Counter(name, help, labels, registry=self._registry)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        self.figures.append(MetricDescription(name, "gauge", labels, help))
        return Gauge(name, help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, *labels: str) -> Histogram:
        self.figures.append(MetricDescription(name, "histogram", labels, help))
        return Histogram(name, help, labels, buckets=DURATIONS_S, registry=self._registry)


def _among(closed: tuple[str, ...], label: str) -> str:
    return label if label in closed else OTHER


def _within(seen: set[str], label: str, most: int) -> str:
    if label not in seen:
        if len(seen) >= most:
            return OTHER
        seen.add(label)
    return label
