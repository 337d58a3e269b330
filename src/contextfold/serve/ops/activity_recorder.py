"""Writes the activity of the fold service and the store to metrics, traces and the log. Knows no transport."""

from __future__ import annotations

from contextfold.errors import place_of
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
from contextfold.fold.sent_request import RequestReport
from contextfold.fold.service.reports import LOST, Activity
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.ops.tracing import Tracer

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
                metrics.count_folded(event.tokens_folded, event.tokens_folded - event.summary_tokens)
                is_unfinished = isinstance(event, BranchFolded) and event.forced
                metrics.branches("folded_unfinished" if is_unfinished else "folded").inc()
            case OperationCompleted():
                metrics.operation(event.source, event.tokens, failed=event.failed)
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

    def __call__(self, text: str) -> None:
        reason = text.removeprefix("away: ")
        if text == "connected":
            log("store.connected")
            self._reasons.clear()
        elif reason not in self._reasons and len(self._reasons) < REASONS_MAX:
            log("store.away", "warning", reason=reason)
            self._reasons.add(reason)
