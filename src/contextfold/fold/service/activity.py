"""The activity of the service for metrics and traces: numbers and fixed names, no texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contextfold.fold.events import Event


@dataclass(frozen=True, slots=True)
class Activity:
    events: Sequence[Event] = ()
    # The rules that redacted something.
    rules: Sequence[str] = ()
    conflicts: int = 0
    store_failed: bool = False
    # The number of reports by host and outcome.
    reports: Mapping[tuple[str, str], int] = field(default_factory=dict)
    reports_took_s: float | None = None
    # The error because of which reports were lost.
    reports_failed: Exception | None = None
    # Whether reports wait for an unavailable store; set only when that changes.
    reports_wait: bool | None = None
