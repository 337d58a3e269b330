"""The audit as one HTML file that needs nothing else. Every text in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from contextfold.audit.tables import (
    EXPLANATION,
    NEXT_STEP,
    PARTS_IN_WORDS,
    Table,
    accuracy_text,
    dearer_text,
    difference_text,
    dollars,
    error_text,
    left_out_texts,
    list_tables,
    prices_text,
    saved_text,
    spent_text,
    unseen_text,
)
from contextfold.common.answer_format import format_share

COLOURS = ("#4c78a8", "#72b7b2", "#e45756", "#f58518", "#54a24b", "#b279a2", "#9d755d")
CHART_WIDTH, CHART_HEIGHT = 900, 160
# What is left of a day's cost, and what is saved of it.
LEFT_COLOUR, SAVED_COLOUR = "#8b93a1", "#2f9e62"
COLUMN_WIDTH_MAX = 60
DAYS_SHOWN = 120
ROWS_SHOWN = 15

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --dim: #5f6368; --paper: #fff; --line: #d9dce1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf1; --dim: #a6abb3; --paper: #17181a; --line: #3a3d42; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 1rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; }
.card strong { display: block; font-size: 2rem; line-height: 1.3; } .card p { margin: 0; color: var(--dim); }
.card em { color: var(--ink); font-weight: bold; font-style: normal; }
td small { display: block; color: var(--dim); font-size: .85rem; padding-left: 1.3rem; }
.dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; } td:first-child { overflow-wrap: anywhere; min-width: 8rem; }
div.scroll { overflow-x: auto; } svg { width: 100%; height: auto; }
.bar { display: flex; height: 1.6rem; border-radius: .3rem; overflow: hidden; margin: .5rem 0; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .5rem; }
"""


def draw_page(audit: Mapping[str, Any]) -> str:
    """The page, from the values that `--json` prints."""
    notes = " ".join([*left_out_texts(audit), prices_text(audit)])
    body = [
        "<h1>What your agents cost, and what contextfold would have saved</h1>",
        f'<div class="cards">{"".join(_draw_cards(audit))}</div>',
        f"<p>{escape(EXPLANATION)} {escape(NEXT_STEP)}</p>",
        f'<p class="dim">{escape(unseen_text(audit["simulation"]))}</p>',
        "<h2>Where the money went</h2>",
        *_draw_parts(audit["parts_dollars"], audit["spent_dollars"]),
        "<h2>Day by day</h2>",
        _draw_days(audit["days"][-DAYS_SHOWN:]),
        *map(_draw_table, list_tables(audit, ROWS_SHOWN)),
        f'<p class="dim">{escape(notes)}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>contextfold audit</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _draw_cards(audit: Mapping[str, Any]) -> Iterable[str]:
    # These texts have figures and dates, and no text of a transcript.
    proxy, simulation = audit["with_proxy"], audit["simulation"]
    cards = (
        ("You spent", dollars(audit["spent_dollars"]), f"{spent_text(audit)}."),
        (
            "With contextfold's proxy",
            difference_text(proxy),
            f"It would have been <em>{dollars(proxy['dollars'])}</em>: {saved_text(proxy)}. The model need not do "
            f"anything for it. {dearer_text(proxy)}",
        ),
        ("Can you trust this?", error_text(simulation), accuracy_text(simulation)),
    )
    for title, figure, text in cards:
        yield f'<div class="card">{escape(title)}<strong>{escape(figure)}</strong><p>{text}</p></div>'


def _draw_parts(parts: Mapping[str, float], spent: float) -> Iterable[str]:
    shown = [(*PARTS_IN_WORDS[part], parts[part], colour) for part, colour in zip(PARTS_IN_WORDS, COLOURS, strict=True)]
    pieces = [
        f'<div style="flex:{cost:.4f} 0 0;background:{colour}" title="{escape(name)}"></div>'
        for name, _, cost, colour in shown
    ]
    yield f'<div class="bar">{"".join(pieces)}</div>'
    rows = [
        f'<tr><td><span class="key" style="background:{colour}"></span>{escape(name)}<small>{escape(meaning)}</small>'
        f'</td><td class="n">{format_share(cost, spent)}</td><td class="n">{dollars(cost)}</td></tr>'
        for name, meaning, cost, colour in shown
    ]
    yield f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _draw_days(days: Sequence[Mapping[str, Any]]) -> str:
    """A column for each day: what was spent, and in front of it what would have been spent."""
    if not days:
        return '<p class="dim">None.</p>'
    highest = max((day["spent_dollars"] for day in days), default=0) or 1
    step = min(COLUMN_WIDTH_MAX, CHART_WIDTH / len(days))
    columns = []
    for at, day in enumerate(days):
        spent, rest = day["spent_dollars"], day["spent_dollars"] - day["saved_dollars"]
        label = escape(f"{day['day']}: {dollars(spent)}, with the proxy {dollars(rest)}")
        columns.append(f"<g><title>{label}</title>{_column(at, step, spent / highest, SAVED_COLOUR)}")
        columns.append(f"{_column(at, step, min(spent, rest) / highest, LEFT_COLOUR)}</g>")
    name = "Spent by day; in grey what it would have been with the proxy"
    return (
        f'<p class="dim">From {days[0]["day"]} to {days[-1]["day"]}, days with requests only; the highest is '
        f"{dollars(highest)}. Green is what the proxy would have saved, grey what would have been left.</p>"
        f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{name}">{"".join(columns)}</svg>'
    )


def _column(at: int, step: float, share: float, colour: str) -> str:
    height = max(0.0, share) * CHART_HEIGHT
    width = max(1.0, step - min(2.0, step / 4))
    top = CHART_HEIGHT - height
    return f'<rect x="{at * step:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _draw_table(table: Table) -> str:
    lines = [_row("th", table.columns), *(_row("td", row) for row in table.rows)]
    more = f'<p class="dim">{table.more:,} more in --json.</p>' if table.more else ""
    return f'<h2>{escape(table.title)}</h2><div class="scroll"><table>{"".join(lines)}</table></div>{more}'


def _row(tag: str, cells: Sequence[str]) -> str:
    first, *numbers = cells
    others = "".join(f'<{tag} class="n">{escape(cell)}</{tag}>' for cell in numbers)
    return f"<tr><{tag}>{escape(first)}</{tag}>{others}</tr>"
