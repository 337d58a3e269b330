"""The audit as one HTML file that needs nothing else. Every text in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# What each part of a bill is called, on the page and on the terminal.
PART_NAMES: Mapping[str, str] = {
    "reads": "reading the cached prompt again",
    "new_text": "new text: prompts, results, answers",
    "rewritten_after_pause": "written again after a pause",
    "rewritten_while_alive": "written again while the cache was alive",
    "first_request": "first request of each conversation",
    "rewritten_after_compaction": "written again after a compaction",
    "output": "output, as far as it was recorded",
}
COLOURS = ("#4c78a8", "#72b7b2", "#e45756", "#f58518", "#54a24b", "#b279a2", "#9d755d")
CHART_WIDTH, CHART_HEIGHT = 900, 160
DAYS_SHOWN = 120
ROWS_SHOWN = 15

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --dim: #5f6368; --paper: #fff; --line: #d9dce1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf1; --dim: #a6abb3; --paper: #17181a; --line: #3a3d42; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.big { font-size: 2rem; margin: .5rem 0; } p.big small { font-size: 1rem; color: var(--dim); }
.dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
div.scroll { overflow-x: auto; } svg { width: 100%; height: auto; }
.bar { display: flex; height: 1.6rem; border-radius: .3rem; overflow: hidden; margin: .5rem 0; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .5rem; }
"""


def draw_page(audit: Mapping[str, Any]) -> str:
    """The page, from the values that `--json` prints."""
    proxy, lives = audit["with_proxy"], audit["by_cache_life"]
    spent = audit["spent_dollars"]
    word = "less" if proxy["saved_dollars"] >= 0 else "more"
    body = [
        "<h1>What your agents cost, and what contextfold would have saved</h1>",
        f'<p class="big">{dollars(spent)} <small>at list prices, {escape(period(audit))}, '
        f"{audit['conversations']:,} conversations, {audit['requests']:,} requests</small></p>",
        f'<p class="big">{dollars(abs(proxy["saved_dollars"]))} {word} <small>with the proxy: '
        f"{abs(proxy['saved_percent']):.1f} % {'cheaper' if word == 'less' else 'dearer'}, without any action of the "
        f"model. {dearer_text(proxy)}</small></p>",
        f'<p class="dim">{escape(accuracy_text(audit["simulation"]))}</p>',
        "<h2>Where the money went</h2>",
        *_draw_parts(audit["parts_dollars"], spent),
        "<h2>Day by day</h2>",
        _draw_days(audit["days"][-DAYS_SHOWN:]),
        "<h2>With another cache</h2>",
        _table(
            ("life of the cache", "without", "with the proxy", "saved"),
            (
                (
                    life,
                    dollars(each["without_dollars"]),
                    dollars(each["with_dollars"]),
                    f"{each['saved_percent']:.1f} %",
                )
                for life, each in lives.items()
            ),
        ),
        "<h2>Written again while the cache was alive</h2>",
        _table(
            ("likely cause", "times", "tokens", "cost"),
            (
                (each["likely_cause"], f"{each['events']:,}", f"{each['tokens']:,}", dollars(each["dollars"]))
                for each in audit["rewritten_while_alive"]
            ),
        ),
        "<h2>The results that cost most</h2>",
        _table(
            ("result", "tokens", "carried through", "cost"),
            (
                (result_name(each), f"{each['tokens']:,}", f"{each['requests']:,} requests", dollars(each["dollars"]))
                for each in audit["results"]
            ),
        ),
        *_draw_groups(audit),
        f'<p class="dim">{escape(" ".join(left_out_texts(audit)))} {escape(prices_text(audit))}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>contextfold audit</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _draw_parts(parts: Mapping[str, float], spent: float) -> Iterable[str]:
    named = [(PART_NAMES[part], cost, colour) for (part, cost), colour in zip(_ordered(parts), COLOURS, strict=True)]
    pieces = [
        f'<div style="width:{percent(cost, spent, digits=2)};background:{colour}" title="{escape(name)}"></div>'
        for name, cost, colour in named
    ]
    yield f'<div class="bar">{"".join(pieces)}</div>'
    rows = [
        f'<tr><td><span class="key" style="background:{colour}"></span>{escape(name)}</td>'
        f'<td class="n">{percent(cost, spent)}</td><td class="n">{dollars(cost)}</td></tr>'
        for name, cost, colour in named
    ]
    yield f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _ordered(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(part, parts[part]) for part in PART_NAMES]


def _draw_days(days: Sequence[Mapping[str, Any]]) -> str:
    """A column for each day: what was spent, and in front of it what would have been spent."""
    highest = max((day["spent_dollars"] for day in days), default=0) or 1
    step = CHART_WIDTH / max(1, len(days))
    columns = []
    for at, day in enumerate(days):
        spent, rest = day["spent_dollars"], day["spent_dollars"] - day["saved_dollars"]
        label = escape(f"{day['day']}: {dollars(spent)}, with the proxy {dollars(rest)}")
        columns.append(f"<g><title>{label}</title>{_column(at, step, spent / highest, COLOURS[2])}")
        columns.append(f"{_column(at, step, min(spent, rest) / highest, COLOURS[0])}</g>")
    name = "Spent by day; in blue what it would have been with the proxy"
    return (
        f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{name}">{"".join(columns)}</svg>'
        f'<p class="dim">Blue is what the proxy would have left; red is what it would have saved. The highest day is '
        f"{dollars(highest)}.</p>"
    )


def _column(at: int, step: float, share: float, colour: str) -> str:
    height = max(0.0, share) * CHART_HEIGHT
    width = max(1.0, step - min(2.0, step / 4))
    top = CHART_HEIGHT - height
    return f'<rect x="{at * step:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _draw_groups(audit: Mapping[str, Any]) -> Iterable[str]:
    for title, name in (("Projects", "project"), ("Models", "model")):
        yield f"<h2>{title}</h2>"
        yield _table(
            (name, "requests", "spent", "saved"),
            (
                (
                    each[name] or "unknown",
                    f"{each['requests']:,}",
                    dollars(each["spent_dollars"]),
                    f"{dollars(each['saved_dollars'])} ({each['saved_percent']:.1f} %)",
                )
                for each in audit[f"{name}s"][:ROWS_SHOWN]
            ),
        )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""
    lines = [_row("th", titles), *(_row("td", row) for row in rows)]
    if len(lines) == 1:
        return '<p class="dim">None.</p>'
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _row(tag: str, cells: Sequence[str]) -> str:
    first, *numbers = cells
    others = "".join(f'<{tag} class="n">{escape(cell)}</{tag}>' for cell in numbers)
    return f"<tr><{tag}>{escape(first)}</{tag}>{others}</tr>"


# ---- words that page and terminal share


def dollars(amount: float) -> str:
    text = f"${abs(amount):,.2f}"
    return f"-{text}" if amount < 0 and text != "$0.00" else text


def percent(part: float, whole: float, *, digits: int = 0) -> str:
    return f"{100 * part / whole if whole else 0:.{digits}f}%"


def period(audit: Mapping[str, Any]) -> str:
    if audit["from"] == audit["to"]:
        return str(audit["from"] or "no requests")
    return f"{audit['from']} to {audit['to']}"


def dearer_text(proxy: Mapping[str, Any]) -> str:
    count = proxy["conversations_dearer"]
    if not count:
        return "No conversation would have cost more."
    noun = "conversation" if count == 1 else "conversations"
    return f"{count:,} {noun} would have cost more, the worst by {proxy['worst_percent']:.1f} %."


def accuracy_text(simulation: Mapping[str, Any]) -> str:
    """How well the simulation without the proxy reproduces the bill, in one sentence or two."""
    if simulation["median_error_percent"] is None:
        return ""
    whole, texts = simulation["with_recorded_breaks_percent"], simulation["from_times_and_texts_percent"]
    half, most = simulation["median_error_percent"], simulation["p90_error_percent"]
    return (
        f"How sure is this? Without the proxy, the same simulation gives {whole:.1f} % of the recorded bill; half of "
        f"the conversations are within {half:.1f} % of theirs, nine of ten within {most:.1f} %. Times and texts alone "
        f"explain {texts:.1f} %; the rest are lost caches, which only the record shows."
    )


def result_name(result: Mapping[str, Any]) -> str:
    return f"{result['tool']} {result['subject'] or ''}".strip()


def left_out_texts(audit: Mapping[str, Any]) -> list[str]:
    """A sentence for each kind of thing that the figures do not contain."""
    names = {
        "broken_lines": "lines are not JSON",
        "long_lines": "lines are too long",
        "unreadable_files": "files cannot be read",
        "requests_without_usage": "requests have no usage",
        "requests_of_unknown_models": "requests are of models without a known price",
    }
    counts = audit["left_out"]
    return [f"Left out: {counts[name]:,} {text}." for name, text in names.items() if counts[name]]


def prices_text(audit: Mapping[str, Any]) -> str:
    days = sorted({price["read_on"] for price in audit["prices"] if price["read_on"]})
    if not days:
        return ""
    return f"List prices as read {days[0] if days[0] == days[-1] else f'from {days[0]} to {days[-1]}'}; no discounts."
