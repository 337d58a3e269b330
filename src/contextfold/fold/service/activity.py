"""What happened, for whoever counts: numbers and fixed names, no texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contextfold.fold.events import Event


@dataclass(frozen=True, slots=True)
class Noted:
    events: Sequence[Event] = ()
    rules: Sequence[str] = ()
    conflicts: int = 0
    store_failed: bool = False
    reports: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (host, what became of it) → how many
    reports_took_s: float | None = None
    reports_failed: Exception | None = None  # why some were lost
    reports_wait: bool | None = None  # whether the store is away for them, when that changes
