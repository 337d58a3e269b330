"""Spans for OpenTelemetry, if an endpoint is configured; otherwise the tracer is None and spans do nothing.

    POST /mcp                        http.request.method, http.route, http.response.status_code, contextfold.refused
    └── tools/call context_branch    contextfold.tool, contextfold.outcome
        └── store commit             contextfold.outcome
    POST /hooks/…
    ├── store commit
    └── hook reports                 contextfold.host, contextfold.outcome, contextfold.reports (how many)

Attributes come from closed sets of our own names, as the labels of the metrics do. Of a request a span has only the ids
of the trace it belongs to (`traceparent`; `tracestate` is the caller's text and is ignored). An error is a status
without a message. A thread exports the spans; a collector that is unavailable costs spans, never a response.
opentelemetry is imported when the first tracer is made. The process-wide tracer is never set, because spans of other
packages contain what was sent to them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Self, cast

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span as OtelSpan

from contextfold import __version__
from contextfold.errors import InternalError
from contextfold.fold.ports.store import Commit, CommitReceipt, StaleRevision, Store
from contextfold.serve.ops.logs import log
from contextfold.settings import SettingsError

TRACES_PATH = "/v1/traces"
# At most this many spans wait to be exported. A further span replaces the oldest.
QUEUE_SPANS = 2048
BATCH_SPANS = 512
EXPORT_EVERY_MS = 2000
EXPORT_TIMEOUT_S = 10.0
# The time to export the last spans, after the last response.
CLOSE_S = 2.0
SERVER_ERROR = 500
# The beginning of opentelemetry's name for a service without a name.
UNNAMED_SERVICE = "unknown_service"


class TraceSpan:
    """A span that is open during a `with` block. This class records nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass

    def answered(self, method: str, route: str, status: int, refused: str) -> None:
        """Record the result of a request, with fixed names only."""

    def called(self, tool: str, outcome: str) -> None:
        """Record a tool's name, and `ok` or an error's code."""


NO_SPAN = TraceSpan()


def request_span(tracer: Tracer | None, headers: Iterable[tuple[bytes, bytes]]) -> TraceSpan:
    return NO_SPAN if tracer is None else tracer.request(headers)


def tool_span(tracer: Tracer | None) -> TraceSpan:
    return NO_SPAN if tracer is None else tracer.child("tools/call")


class ExportedSpan(TraceSpan):
    """A span that is exported. Spans that begin during it are its children."""

    __slots__ = ("_otel", "_outcome", "_token")

    def __init__(self, otel: OtelSpan) -> None:
        self._otel = otel
        self._outcome = ""
        self._token: Token[OtelSpan | None] | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self._otel)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
        if kind is not None and not self._outcome:
            self.ended("cancelled" if issubclass(kind, asyncio.CancelledError) else InternalError.code)
        self._otel.end()

    def answered(self, method: str, route: str, status: int, refused: str) -> None:
        self._otel.update_name(f"{method} {route}")
        self._otel.set_attributes(
            {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        )
        if refused:
            self._otel.set_attribute("contextfold.refused", refused)
        if status >= SERVER_ERROR:
            _fail(self._otel)
        self._outcome = "answered"

    def called(self, tool: str, outcome: str) -> None:
        self._otel.update_name(f"tools/call {tool}")
        self._otel.set_attribute("contextfold.tool", tool)
        self.ended(outcome, is_error=outcome != "ok")

    def ended(self, outcome: str, *, is_error: bool = True) -> None:
        self._otel.set_attribute("contextfold.outcome", outcome)
        if is_error:
            _fail(self._otel)
        self._outcome = outcome


_current: ContextVar[OtelSpan | None] = ContextVar("contextfold-span", default=None)


class Tracer:
    """Begins spans and exports them."""

    def __init__(self, endpoint: str) -> None:
        """Raises SettingsError if opentelemetry is not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise SettingsError(
                "traces need the package's `otel` extra: pip install 'contextfold[otel]', or leave the endpoint out"
            ) from None
        # LoggedExporter logs failures once. The library's own records contain texts, and repeat with every attempt.
        library = logging.getLogger("opentelemetry")
        library.propagate = False
        library.addHandler(logging.NullHandler())
        url = endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
        resource = Resource.create()
        exporter = cast("SpanExporter", LoggedExporter(OTLPSpanExporter(url, timeout=EXPORT_TIMEOUT_S)))
        if str(resource.attributes[SERVICE_NAME]).startswith(UNNAMED_SERVICE):
            resource = resource.merge(Resource({SERVICE_NAME: "contextfold", SERVICE_VERSION: __version__}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, QUEUE_SPANS, EXPORT_EVERY_MS, BATCH_SPANS, EXPORT_TIMEOUT_S * 1000)
        )
        self._tracer = self._provider.get_tracer("contextfold", __version__)
        self._otel = trace
        self._propagator = TraceContextTextMapPropagator()

    def request(self, headers: Iterable[tuple[bytes, bytes]]) -> ExportedSpan:
        """The span of a request, below the span in `traceparent`, if any. It is named when its route is known."""
        parents = [value.decode("latin-1") for name, value in headers if name == b"traceparent"]
        carrier = {"traceparent": parents[0]} if len(parents) == 1 else {}
        context = self._propagator.extract(carrier, self._under(None))
        return ExportedSpan(self._tracer.start_span("request", context, self._otel.SpanKind.SERVER))

    def child(self, name: str) -> ExportedSpan:
        """Begin a span below the current one. `name` is a fixed name."""
        return ExportedSpan(self._tracer.start_span(name, self._under(_current.get())))

    def reports_written(self, reports: Mapping[tuple[str, str], int], seconds: float) -> None:
        """Record the outcomes of hook reports that were just written, by host."""
        ended_ns = time.time_ns()
        for (host, outcome), times in reports.items():
            span = self._tracer.start_span(
                "hook reports", self._under(_current.get()), start_time=ended_ns - int(seconds * 1e9)
            )
            span.set_attributes(
                {"contextfold.host": host, "contextfold.outcome": outcome, "contextfold.reports": times}
            )
            span.end(ended_ns)

    def close(self) -> None:
        """Export the remaining spans for at most CLOSE_S; a collector that hangs must not delay the end."""
        closing = threading.Thread(target=self._provider.shutdown, name="contextfold-traces-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            log("traces.cut", "warning", after_s=CLOSE_S)

    def _under(self, parent: OtelSpan | None) -> Context:
        from opentelemetry.context import Context

        return Context() if parent is None else self._otel.set_span_in_context(parent, Context())


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
                span.ended("conflict", is_error=False)
                raise
            except Exception:
                span.ended("error")
                raise
            span.ended("commit", is_error=False)
            return receipt


class LoggedExporter:
    """An exporter around another that logs when exporting begins to fail, and when it works again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._works = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export(spans)
        except Exception as problem:
            # The message may contain the collector's address, so only the type is logged.
            result = SpanExportResult.FAILURE
            self._log_change(works=False, spans=len(spans), exception=type(problem).__name__)
        else:
            self._log_change(works=result is SpanExportResult.SUCCESS, spans=len(spans))
        return result

    def __getattr__(self, name: str) -> object:
        return getattr(self._exporter, name)

    def _log_change(self, *, works: bool, **fields: str | int) -> None:
        if works != self._works:
            self._works = works
            log("traces.exported_again" if works else "traces.not_exported", "info" if works else "warning", **fields)


def _fail(span: OtelSpan) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))
