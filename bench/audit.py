"""`context audit` on transcripts whose truth is known: recorded sessions and shapes, written as Claude Code would.

The recorded sessions have the provider's own usage, so the bill is known to the token. For shapes, a simulated provider
answers, and the real folding is replayed request by request (`bench.economy`): the audit must come to the same totals.
Without these files, made-up shapes are used. The last rows are the time and memory for a large folder.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.economy import (
    COLD,
    MADE_UP,
    MODEL,
    SHAPES,
    WITHOUT,
    ConversationReplay,
    Message,
    ShapedConversation,
    made_up_shape,
    shapes_in,
)
from bench.figures import Figure, report_progress, run, show
from bench.recorded_sessions import SESSIONS, recorded_sessions, write_transcript
from contextfold.audit.report import AuditReport, audit_transcripts
from contextfold.audit.transcripts import Skipped, list_given
from contextfold.fold.events import RequestSent
from contextfold.fold.messages import BodyProjection
from contextfold.fold.model_catalog import MODELS, PRICE_UNITS_PER_DOLLAR, RELATIVE_PRICES

BILL_OFF_MAX, TOTALS_OFF_MAX = 0.05, 0.01
LARGE_BYTES, LARGE_S, LARGE_MB = 1 << 30, 120.0, 1024.0
TRANSCRIPTS = SESSIONS.parent / "claude-code"
# Of all their models: for a million tokens of input, cache read, written for five minutes and an hour, output.
DOLLARS_OF_OPUS = (5.0, 0.5, 6.25, 10.0, 25.0)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


class TranscriptReplay(ConversationReplay):
    """Plays a conversation without us, and writes what Claude Code would have recorded of it."""

    def __init__(self, shape: ShapedConversation, *, is_1h: bool) -> None:
        super().__init__(shape, WITHOUT, is_1h=is_1h)
        self._sent = 0
        self.lines: list[str] = []

    def _send(self, projection: BodyProjection, at_s: float, answer: list[Message], out: int) -> None:
        if len(self._messages) < self._sent:
            self._sent = 0
            self._line("system", at_s, subtype="compact_boundary")
        for message in map(json.loads, self._messages[self._sent :]):
            if message["role"] == "user":
                self._line("user", at_s, message=message)
        super()._send(projection, at_s, answer, out)
        event = self.run.events[-1]
        message_id = f"msg_{self._shape.id}_{len(self.lines)}"
        recorded = {"role": "assistant", "id": message_id, "model": MODEL, "content": answer, "usage": _usage_of(event)}
        self._line("assistant", at_s, message=recorded)
        # The answer itself is in the list before the next request.
        self._sent = len(self._messages) + 1

    def _line(self, kind: str, at_s: float, **members: Any) -> None:  # noqa: ANN401
        moment = (BEGIN + timedelta(seconds=at_s)).isoformat()
        common = {"type": kind, "uuid": f"{len(self.lines)}", "sessionId": self._shape.id, "timestamp": moment}
        self.lines.append(json.dumps(common | members))


def _usage_of(event: RequestSent) -> dict[str, Any]:
    return {
        "input_tokens": event.input_tokens,
        "cache_read_input_tokens": event.cache_read_tokens,
        "cache_creation_input_tokens": event.cache_write_tokens,
        "cache_creation": {"ephemeral_1h_input_tokens": event.cache_write_1h_tokens},
        "output_tokens": event.output_tokens,
    }


def audit_shapes(shapes: Sequence[ShapedConversation], folder: Path, *, is_1h: bool) -> list[Figure]:
    """The audit's totals beside those of the replay."""
    without = with_proxy = 0
    for number, shape in enumerate(shapes):
        replay = TranscriptReplay(shape, is_1h=is_1h)
        without += replay.play().cost
        (folder / f"{number}.jsonl").write_text("\n".join(replay.lines) + "\n", encoding="utf-8")
        with_proxy += ConversationReplay(shape, COLD, is_1h=is_1h).play().cost
    report = audit(folder)
    prices = MODELS.prices(MODEL)
    assert prices is not None
    dollars = prices.input / RELATIVE_PRICES.input / PRICE_UNITS_PER_DOLLAR
    life = "1 h" if is_1h else "5 min"
    return [
        _within(f"shapes, {life}: spent", report.total.spent, without * dollars, TOTALS_OFF_MAX),
        _within(
            f"shapes, {life}: with the proxy",
            # The replay leaves out after a pause only, as the first rule does.
            report.total.with_rules[0],
            with_proxy * dollars,
            TOTALS_OFF_MAX,
        ),
    ]


def audit_sessions(folder: Path) -> list[Figure]:
    """The audit of recorded sessions, whose bill the provider wrote."""
    for session in recorded_sessions():
        write_transcript(session, folder)
    report = audit(folder)
    errors = report.simulation_errors()
    total, dearer = report.total, report.dearer()
    furthest = f"half within {errors[len(errors) // 2]:.1%}, furthest {errors[-1]:.0%}"
    saved = f"{total.saved / total.spent:.1%} saved, {len(dearer)} dearer of {len(report.conversations)}"
    return [
        _within("recorded sessions: simulated bill", total.simulated, total.spent, BILL_OFF_MAX),
        Figure("recorded sessions: single conversations", furthest, "recorded", 0, 0),
        Figure("recorded sessions: with the proxy", saved, "0 dearer", len(dearer), 0),
    ]


def audit_transcripts_of_others(folder: Path) -> list[Figure]:
    """Transcripts as a host wrote them, beside a sum of their usage that shares no code with the audit."""
    dollars = 0.0
    for packed in sorted(TRANSCRIPTS.glob("*.jsonl.xz")):
        text = lzma.decompress(packed.read_bytes()).decode()
        folder.mkdir(exist_ok=True)
        (folder / packed.stem).write_text(text, encoding="utf-8")
        responses = {}
        for line in map(json.loads, text.splitlines()):
            if line["type"] == "assistant" and line["message"]["model"] != "<synthetic>":
                responses[line["message"]["id"]] = line["message"]
        for message in responses.values():
            usage, price = message["usage"], DOLLARS_OF_OPUS
            written_1h = usage["cache_creation"]["ephemeral_1h_input_tokens"]
            counts = (
                usage["input_tokens"],
                usage["cache_read_input_tokens"],
                usage["cache_creation_input_tokens"] - written_1h,
                written_1h,
                usage["output_tokens"],
            )
            dollars += sum(count * each for count, each in zip(counts, price, strict=True)) / 1e6
    spent = audit(folder).total.spent
    off = abs(round(spent, 2) - round(dollars, 2))
    return [Figure("transcripts of others: spent", f"${spent:,.4f}", f"${dollars:,.4f}", off, 0.0)]


def measure_large_folder(folder: Path) -> list[Figure]:
    """Time and memory for a gibibyte of transcripts: copies of the ones above, each with ids of its own."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.jsonl"))]
    with TemporaryDirectory() as large:
        written = number = 0
        while written < LARGE_BYTES:
            text = texts[number % len(texts)].replace('"msg_', f'"msg_{number}_')
            Path(large, f"{number}.jsonl").write_text(text, encoding="utf-8")
            written, number = written + len(text), number + 1
        measured = run([sys.executable, "-m", "contextfold", "audit", "--json", large])
    return [
        # On a busy machine the time that passes says little.
        Figure(
            "1 GiB of transcripts: processor time",
            f"{measured.processor_s:.0f} s ({measured.seconds:.0f} s passed)",
            "120 s",
            measured.processor_s,
            LARGE_S,
        ),
        Figure("1 GiB of transcripts: memory", f"{measured.peak_mb:.0f} MB", "1 GB", measured.peak_mb, LARGE_MB),
    ]


def audit(folder: Path) -> AuditReport:
    return audit_transcripts(list_given([folder], Skipped()), MODELS, lambda _done, _total: None, Skipped())


def _within(name: str, measured: float, truth: float, limit: float) -> Figure:
    off = abs(measured / truth - 1)
    return Figure(name, f"${measured:,.2f} ({off:.2%} off)", f"${truth:,.2f}", off, limit)


def main() -> bool:
    shapes = list(shapes_in(SHAPES)) if SHAPES.exists() else [made_up_shape(seed) for seed in range(MADE_UP)]
    figures: list[Figure] = []
    with TemporaryDirectory() as folder:
        for is_1h in (False, True):
            report_progress(f"replaying {len(shapes)} conversations, and auditing their transcripts")
            below = Path(folder, "1h" if is_1h else "5m")
            os.mkdir(below)
            figures += audit_shapes(shapes, below, is_1h=is_1h)
        if TRANSCRIPTS.exists():
            figures += audit_transcripts_of_others(Path(folder, "others"))
        if SESSIONS.exists():
            sessions = Path(folder, "sessions")
            figures += audit_sessions(sessions)
            report_progress("auditing a gibibyte of transcripts")
            figures += measure_large_folder(sessions)
    return show("Audit", figures)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
