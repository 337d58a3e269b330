"""Exports spans with OpenTelemetry. This is an optional extra: only `app` imports the module, if there is an endpoint.

A thread exports the spans; a collector that is unavailable costs spans, never a response. The process-wide tracer is
never set, because spans of other packages contain what was sent to them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from contextfold import __version__
from contextfold.errors import InternalError
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.tracing import TraceSpan

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

_current: ContextVar[trace.Span | None] = ContextVar("contextfold-span", default=None)


class ExportedSpan(TraceSpan):
    """A span that is exported. Spans that begin during it are its children."""

    __slots__ = ("_otel", "_outcome", "_token")

    def __init__(self, otel: trace.Span) -> None:
        self._otel = otel
        self._outcome = ""
        self._token: Token[trace.Span | None] | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self._otel)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
        if kind is not None and not self._outcome:
            self.record_outcome("cancelled" if issubclass(kind, asyncio.CancelledError) else InternalError.code)
        self._otel.end()

    def record_response(self, method: str, route: str, status: int, refused: str) -> None:
        self._otel.update_name(f"{method} {route}")
        self._otel.set_attributes(
            {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        )
        if refused:
            self._otel.set_attribute("contextfold.refused", refused)
        if status >= SERVER_ERROR:
            _fail(self._otel)
        self._outcome = "answered"

    def record_tool(self, tool: str, outcome: str) -> None:
        self._otel.update_name(f"tools/call {tool}")
        self._otel.set_attribute("contextfold.tool", tool)
        self.record_outcome(outcome, is_error=outcome != "ok")

    def record_outcome(self, outcome: str, *, is_error: bool = True) -> None:
        self._otel.set_attribute("contextfold.outcome", outcome)
        if is_error:
            _fail(self._otel)
        self._outcome = outcome


class OtelTracer:
    """The tracer of a daemon that has an endpoint for traces."""

    def __init__(self, endpoint: str) -> None:
        # LoggedExporter logs failures once. The library's own records contain texts, and repeat with every attempt.
        library = logging.getLogger("opentelemetry")
        library.propagate = False
        library.addHandler(logging.NullHandler())
        url = endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
        resource = Resource.create()
        exporter = LoggedExporter(OTLPSpanExporter(url, timeout=EXPORT_TIMEOUT_S))
        if str(resource.attributes[SERVICE_NAME]).startswith(UNNAMED_SERVICE):
            resource = resource.merge(Resource({SERVICE_NAME: "contextfold", SERVICE_VERSION: __version__}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, QUEUE_SPANS, EXPORT_EVERY_MS, BATCH_SPANS, EXPORT_TIMEOUT_S * 1000)
        )
        self._tracer = self._provider.get_tracer("contextfold", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def request(self, headers: Iterable[tuple[bytes, bytes]]) -> ExportedSpan:
        parents = [value.decode("latin-1") for name, value in headers if name == b"traceparent"]
        carrier = {"traceparent": parents[0]} if len(parents) == 1 else {}
        context = self._propagator.extract(carrier, _context_of(None))
        return ExportedSpan(self._tracer.start_span("request", context, trace.SpanKind.SERVER))

    def child(self, name: str) -> ExportedSpan:
        return ExportedSpan(self._tracer.start_span(name, _context_of(_current.get())))

    def record_reports(self, reports: Mapping[tuple[str, str], int], seconds: float) -> None:
        ended_ns = time.time_ns()
        for (host, outcome), times in reports.items():
            span = self._tracer.start_span(
                "hook reports", _context_of(_current.get()), start_time=ended_ns - int(seconds * 1e9)
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


class LoggedExporter(SpanExporter):
    """An exporter around another that logs when exporting begins to fail, and when it works again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._works = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as problem:
            # The message may contain the collector's address, so only the type is logged.
            result = SpanExportResult.FAILURE
            self._log_change(works=False, spans=len(spans), exception=type(problem).__name__)
        else:
            self._log_change(works=result is SpanExportResult.SUCCESS, spans=len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _log_change(self, *, works: bool, **fields: str | int) -> None:
        if works != self._works:
            self._works = works
            log("traces.exported_again" if works else "traces.not_exported", "info" if works else "warning", **fields)


def _context_of(parent: trace.Span | None) -> Context:
    return Context() if parent is None else trace.set_span_in_context(parent, Context())


def _fail(span: trace.Span) -> None:
    span.set_status(trace.Status(trace.StatusCode.ERROR))
