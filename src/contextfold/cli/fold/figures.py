"""Formats the figures of a session in a few lines. Knows no store."""

from __future__ import annotations

from contextfold.cli.fold.session_access import MAIN
from contextfold.cli.terminal import Column, Line, Part, Screen, several
from contextfold.fold.accounting import percent, total_tokens
from contextfold.fold.session import STATUSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from contextfold.cli.fold.session_access import SessionView
    from contextfold.fold.session import State

BAR_WIDTH = 32
BAR_WIDTH_NARROW = 16
MAIN_CELL, BRANCH_CELL, FREE_CELL = "█", "▓", "░"
FULL_PERCENT = 100
HEALTH_STYLES = {"none": "green", "medium": "yellow", "high": "bold red"}
HEALTH_WORDS = {"none": "✓ good", "medium": "▲ medium", "high": "▲ high"}


def status(screen: Screen, state: State, figures: SessionView) -> str:
    """The state of a session; `figures` is its row in the `/v1` API."""
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


def bar(figures: SessionView, width: int) -> list[Part]:
    """A bar that shows the used part of the context: the main thread, then the open branches."""
    total, limit = figures["total_tokens"], figures["context_limit"]
    filled = min(width, _cells(total, limit, width))
    main = filled - min(filled, _cells(total - figures["main_thread_tokens"], limit, width))
    warning = figures["context_health"]["warning"] if figures["usage_percent"] <= FULL_PERCENT else "high"
    style = HEALTH_STYLES[warning]
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


def _facts(state: State, figures: SessionView) -> list[tuple[str, str]]:
    health = figures["context_health"]
    total, limit = figures["total_tokens"], figures["context_limit"]
    facts = [
        ("project", state.project_path),
        ("session", state.session_id or ""),
        ("name", state.name or ""),
        ("started", state.started_at),
        ("last", state.last_at),
        ("path", " ".join([MAIN, *state.path])),
        ("tokens", f"{total} of {limit} ({figures['usage_percent']}%)"),
        ("main-thread", str(figures["main_thread_tokens"])),
        ("folded", str(figures["folded_tokens"])),
        ("saved", str(figures["tokens_saved"])),
        ("health", health["warning"]),
        ("suggestion", health.get("suggestion", "")),
        ("failure-rate", repr(health["failure_rate"]) if "failure_rate" in health else ""),
        ("branches", ", ".join(f"{figures[f'{word}_branches']} {word}" for word in STATUSES)),
        ("operations", f"{figures['operations']}, {figures['failed_operations']} failed"),
        ("redactions", str(figures["secrets_scrubbed"])),
    ]
    return [(label, value) for label, value in facts if value]


def _drawn_facts(screen: Screen, state: State, figures: SessionView) -> list[tuple[str, Line]]:
    figure = screen.figure
    counts = " · ".join(f"{count:,} {word}" for word in STATUSES if (count := figures[f"{word}_branches"]))
    failed = (f" · {figures['failed_operations']:,} failed", "red") if figures["failed_operations"] else ""
    total, main, folded = (figures[name] for name in ("total_tokens", "main_thread_tokens", "folded_tokens"))
    saved = (f" · {figure(figures['tokens_saved'])} saved", "green" if figures["tokens_saved"] > 0 else "yellow")
    used = f"  {figure(total)} of {figure(figures['context_limit'])}  {figures['usage_percent']}%"
    secrets = figures["secrets_scrubbed"]
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
        ("main thread", [f"{MAIN_CELL} {figure(main)}"]),
        ("in branches", [f"{BRANCH_CELL} {figure(total - main)}"] if total != main else []),
        ("folded", [f"  {figure(folded)}", saved] if folded else []),
        ("", [" "]),
        ("branches", [counts or "none"]),
        ("operations", [f"{figures['operations']:,}", failed]),
        ("redactions", [(several(secrets, "secret") + " scrubbed", "yellow")] if secrets else []),
        *_health_rows(figures["context_health"]),
    ]


def _health_rows(health: Mapping[str, Any]) -> list[tuple[str, Line]]:
    words: list[Part] = [(HEALTH_WORDS[health["warning"]], HEALTH_STYLES[health["warning"]])]
    if "failure_rate" in health:
        words.append((f" · {health['failure_rate']:.0%} of this branch's operations failed", "red"))
    return [("health", words), ("", [(health["suggestion"], "italic")] if "suggestion" in health else [])]
