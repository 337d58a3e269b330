"""Formats the figures of a session in a few lines. Knows no store."""

from __future__ import annotations

from contextfold.cli.fold.session_access import MAIN
from contextfold.cli.terminal import Column, Line, Part, Screen, several
from contextfold.common.dataclass import dataclass
from contextfold.fold.accounting import folded_tokens, percent, total_tokens
from contextfold.fold.service.session_views import tokens_saved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from contextfold.fold.accounting import Health
    from contextfold.fold.service.policy import FoldPolicy
    from contextfold.fold.session import State

BAR_WIDTH = 32
BAR_WIDTH_NARROW = 16
MAIN_CELL, BRANCH_CELL, FREE_CELL = "█", "▓", "░"
FULL_PERCENT = 100
HEALTH_STYLES = {"none": "green", "medium": "yellow", "high": "bold red"}
HEALTH_WORDS = {"none": "✓ good", "medium": "▲ medium", "high": "▲ high"}


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """The figures of a session. `counts` has the number of branches for each status."""

    total: int
    limit: int
    main: int
    folded: int
    saved: int
    operations: int
    failed: int
    redactions: int
    counts: Sequence[tuple[int, str]]
    health: Health

    @property
    def percent(self) -> int:
        return percent(self.total, self.limit)


def figures_of(state: State, policy: FoldPolicy) -> SessionFigures:
    branches = state.branches.values()
    return SessionFigures(
        total_tokens(state),
        policy.context_limit(state),
        state.main.tokens,
        folded_tokens(state),
        sum(map(tokens_saved, branches)),
        state.main.operations + sum(branch.operations for branch in branches),
        state.main.failed + sum(branch.failed for branch in branches),
        state.main.redactions + sum(branch.redactions for branch in branches),
        [(sum(branch.status == status for branch in branches), status) for status in ("active", "folded", "discarded")],
        policy.health(state, state.active),
    )


def status(screen: Screen, state: State, figures: SessionFigures) -> str:
    if not screen.is_terminal:
        return screen.table([Column(), Column()], [[[label], [value]] for label, value in _facts(state, figures)])
    rows: list[Sequence[Line]] = [
        [[(label, "dim")], parts] for label, parts in _drawn_facts(screen, state, figures) if parts
    ]
    return screen.lines([(state.project_path, "bold")], "") + screen.table(
        [Column(), Column(shrinks=True, wraps=True)], rows
    )


def headline(screen: Screen, state: State, limit: int) -> list[Line]:
    total = total_tokens(state)
    where: list[Part] = [(state.project_path, "bold"), f" · {state.name}" if state.name else ""]
    used = (f"{screen.figure(total)} of {screen.figure(limit)} tokens ({percent(total, limit)}%)", "dim")
    return [where, [used]] if screen.is_narrow else [[*where, "  ", used]]


def bar(figures: SessionFigures, width: int) -> list[Part]:
    """A bar that shows the used part of the context: the main thread, then the open branches."""
    filled = min(width, _cells(figures.total, figures.limit, width))
    main = filled - min(filled, _cells(figures.total - figures.main, figures.limit, width))
    style = HEALTH_STYLES[figures.health.warning] if figures.percent <= FULL_PERCENT else HEALTH_STYLES["high"]
    return [
        (MAIN_CELL * main, style),
        (BRANCH_CELL * (filled - main), style),
        (FREE_CELL * (width - filled), "dim"),
    ]


def _cells(tokens: int, limit: int, width: int) -> int:
    """The width of a part of the bar. It is at least one cell if there are any tokens."""
    return -(-width * tokens // limit)


def path_parts(state: State) -> list[Part]:
    """The path from the main thread to the innermost open branch."""
    parts: list[Part] = [(MAIN, "" if state.path else "bold")]
    for open_id in state.path:
        is_last = open_id == state.path[-1]
        parts += [(" › ", "dim"), (state.branches[open_id].description, "bold" if is_last else "")]
    return parts


def _facts(state: State, figures: SessionFigures) -> list[tuple[str, str]]:
    health_now = figures.health
    facts = [
        ("project", state.project_path),
        ("session", state.session_id or ""),
        ("name", state.name or ""),
        ("started", state.started_at),
        ("last", state.last_at),
        ("path", " ".join([MAIN, *state.path])),
        ("tokens", f"{figures.total} of {figures.limit} ({figures.percent}%)"),
        ("main-thread", str(figures.main)),
        ("folded", str(figures.folded)),
        ("saved", str(figures.saved)),
        ("health", health_now.warning),
        ("suggestion", health_now.suggestion or ""),
        ("failure-rate", "" if health_now.failure_rate is None else repr(health_now.failure_rate)),
        ("branches", ", ".join(f"{count} {word}" for count, word in figures.counts)),
        ("operations", f"{figures.operations}, {figures.failed} failed"),
        ("redactions", str(figures.redactions)),
    ]
    return [(label, value) for label, value in facts if value]


def _drawn_facts(screen: Screen, state: State, figures: SessionFigures) -> list[tuple[str, Line]]:
    figure = screen.figure
    counts = " · ".join(f"{count:,} {word}" for count, word in figures.counts if count)
    failed = (f" · {figures.failed:,} failed", "red") if figures.failed else ""
    in_branches = figures.total - figures.main
    saved = (f" · {figure(figures.saved)} saved", "green" if figures.saved > 0 else "yellow")
    used = f"  {figure(figures.total)} of {figure(figures.limit)}  {figures.percent}%"
    return [
        ("session", [state.session_id or "", *([f" · {state.name}"] if state.name else [])]),
        ("last active", [screen.moment(state.last_at), (f" · begun {screen.moment(state.started_at)}", "dim")]),
        ("working in", path_parts(state)),
        ("", [" "]),
        (
            "tokens",
            [
                *bar(figures, BAR_WIDTH_NARROW if screen.is_narrow else BAR_WIDTH),
                ("" if screen.is_narrow else used, "bold"),
            ],
        ),
        ("", [(used.strip(), "bold")] if screen.is_narrow else []),
        ("main thread", [f"{MAIN_CELL} {figure(figures.main)}"]),
        ("in branches", [f"{BRANCH_CELL} {figure(in_branches)}"] if in_branches else []),
        ("folded", [f"  {figure(figures.folded)}", saved] if figures.folded else []),
        ("", [" "]),
        ("branches", [counts or "none"]),
        ("operations", [f"{figures.operations:,}", failed]),
        ("redactions", [(several(figures.redactions, "secret") + " scrubbed", "yellow")] if figures.redactions else []),
        *_health_rows(figures.health),
    ]


def _health_rows(health_now: Health) -> list[tuple[str, Line]]:
    words: list[Part] = [(HEALTH_WORDS[health_now.warning], HEALTH_STYLES[health_now.warning])]
    if health_now.failure_rate is not None:
        words.append((f" · {health_now.failure_rate:.0%} of this branch's operations failed", "red"))
    return [("health", words), ("", [(health_now.suggestion or "", "italic")] if health_now.suggestion else [])]
