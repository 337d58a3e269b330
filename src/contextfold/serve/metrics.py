"""What the daemon counts, for Prometheus. Knows numbers and fixed names; no owner, project or session is a label.

Labels come from closed sets: a tool we do not have is `unknown`, a method nobody defined is `other`. A caller can
therefore neither fill the memory with series nor write into them.
"""

from __future__ import annotations

from collections.abc import Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from contextfold import __version__

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
UNKNOWN_TOOL = "unknown"
RULES_MAX = 1000  # rule ids come from a file; one with more than this many is counted under `other`
ROUTES_MAX = 200  # route templates likewise come from our own table
DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Every figure of one daemon."""

    def __init__(self, tools: Iterable[str]) -> None:
        # Without this each counter has a second series, for when it was made, which nobody asks for.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._tools = frozenset(tools)
        self._rules: set[str] = set()
        self._routes: set[str] = set()
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Gauge("contextfold_build_info", "What is running.", ["version"], registry=registry).labels(__version__).set(1)
        self._requests = Counter(
            "contextfold_http_requests", "Requests answered.", ["route", "method", "status"], registry=registry
        )
        self._durations = Histogram(
            "contextfold_http_request_duration_seconds",
            "From a request's head to the end of its answer; streams are not in it.",
            ["route"],
            buckets=DURATIONS_S,
            registry=registry,
        )
        self.in_flight = Gauge("contextfold_http_requests_in_flight", "Requests being answered.", registry=registry)
        self.streams = Gauge("contextfold_http_streams_open", "Event streams being sent.", registry=registry)
        self._refusals = Counter(
            "contextfold_http_refusals", "Requests refused at the edge, by why.", ["reason"], registry=registry
        )
        self._calls = Counter(
            "contextfold_tool_calls", "Tool calls, by how they ended.", ["tool", "outcome"], registry=registry
        )
        self._call_durations = Histogram(
            "contextfold_tool_duration_seconds", "Of tool calls.", ["tool"], buckets=DURATIONS_S, registry=registry
        )
        self._folded = Counter("contextfold_tokens_folded", "Tokens of branches that were folded.", registry=registry)
        self._saved = Gauge(
            "contextfold_tokens_saved",
            "Tokens of folded branches less those of their summaries, since the start; a long summary lowers it.",
            registry=registry,
        )
        self._redactions = Counter("contextfold_redactions", "Secrets taken out, by rule.", ["rule"], registry=registry)
        self._store = Counter(
            "contextfold_store_operations",
            "Attempts to append to a session: commit, conflict (decided again) or error.",
            ["outcome"],
            registry=registry,
        )
        self._sessions = Gauge("contextfold_sessions_open", "Sessions that have not ended.", registry=registry)

    def request(self, route: str, method: str, status: int) -> None:
        self._requests.labels(
            _within(self._routes, route, ROUTES_MAX), method if method in METHODS else OTHER, str(status)
        ).inc()

    def request_took(self, route: str, seconds: float) -> None:
        self._durations.labels(_within(self._routes, route, ROUTES_MAX)).observe(seconds)

    def refusal(self, reason: str) -> None:
        """`reason` is a code of ours, never what was sent."""
        self._refusals.labels(reason).inc()

    def tool_call(self, tool: str, outcome: str, seconds: float) -> None:
        """`outcome` is `ok` or an error code of ours."""
        known = tool if tool in self._tools else UNKNOWN_TOOL
        self._calls.labels(known, outcome).inc()
        self._call_durations.labels(known).observe(seconds)

    def folded(self, tokens: int, saved: int) -> None:
        self._folded.inc(tokens)
        self._saved.inc(saved)

    def redacted(self, rule: str, times: int = 1) -> None:
        self._redactions.labels(_within(self._rules, rule, RULES_MAX)).inc(times)

    def store_commit(self) -> None:
        self._store.labels("commit").inc()

    def store_conflict(self) -> None:
        self._store.labels("conflict").inc()

    def store_error(self) -> None:
        self._store.labels("error").inc()

    def sessions_open(self, count: int) -> None:
        self._sessions.set(count)

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        return prometheus_client.generate_latest(self._registry), prometheus_client.CONTENT_TYPE_LATEST


def _within(seen: set[str], label: str, most: int) -> str:
    if label not in seen:
        if len(seen) >= most:
            return OTHER
        seen.add(label)
    return label
