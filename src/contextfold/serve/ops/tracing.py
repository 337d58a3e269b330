"""Spans of requests, tool calls and commits. Without a tracer they do nothing; `serve.ops.otel` has the one there is.

    POST /mcp                        http.request.method, http.route, http.response.status_code, contextfold.refused
    └── tools/call context_branch    contextfold.tool, contextfold.outcome
        └── store commit             contextfold.outcome
    POST /hooks/…
    ├── store commit
    └── hook reports                 contextfold.host, contextfold.outcome, contextfold.reports (how many)

Attributes come from closed sets of our own names, as the labels of the metrics do. Of a request a span has only the ids
of the trace it belongs to (`traceparent`; `tracestate` is the caller's text and is ignored). An error is a status
without a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, Self

from contextfold.fold.store import Commit, CommitReceipt, StaleRevision, Store


class TraceSpan:
    """A span that is open during a `with` block. This class records nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass

    def record_response(self, method: str, route: str, status: int, refused: str) -> None:
        """Record the result of a request, with fixed names only."""

    def record_tool(self, tool: str, outcome: str) -> None:
        """Record a tool's name, and `ok` or an error's code."""

    def record_outcome(self, outcome: str, *, is_error: bool = True) -> None:
        """Record a fixed word."""


NO_SPAN = TraceSpan()


class Tracer(Protocol):
    """Begins spans and exports them."""

    def request(self, headers: Iterable[tuple[bytes, bytes]]) -> TraceSpan:
        """The span of a request, below the span in `traceparent`, if any. It is named when its route is known."""

    def child(self, name: str) -> TraceSpan:
        """Begin a span below the current one. `name` is a fixed name."""

    def record_reports(self, reports: Mapping[tuple[str, str], int], seconds: float) -> None:
        """Record the outcomes of hook reports that were just written, by host."""

    def close(self) -> None:
        """Export the remaining spans, within a limit of time."""


def request_span(tracer: Tracer | None, headers: Iterable[tuple[bytes, bytes]]) -> TraceSpan:
    return NO_SPAN if tracer is None else tracer.request(headers)


def tool_span(tracer: Tracer | None) -> TraceSpan:
    return NO_SPAN if tracer is None else tracer.child("tools/call")


class TracedStore:
    """A store that records its commits as spans and passes on all other calls."""

    def __init__(self, store: Store, tracer: Tracer) -> None:
        self._store, self._tracer = store, tracer

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> CommitReceipt:
        with self._tracer.child("store commit") as span:
            try:
                receipt = await self._store.commit(commit)
            except StaleRevision:
                span.record_outcome("conflict", is_error=False)
                raise
            except Exception:
                span.record_outcome("error")
                raise
            span.record_outcome("commit", is_error=False)
            return receipt
