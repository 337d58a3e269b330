"""The audit as one HTML file that needs nothing else. Every text in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

SHORT_RULE_NAMES: Mapping[str, str] = {
    "results_after_a_pause": "after a pause",
    "results_behind_a_broken_prefix": "lost caches",
    "small_results_edits_and_thinking": "the rest",
}
# What each part of a bill is called, on the page and on the terminal, and what it means.
PART_NAMES: Mapping[str, str] = {
    "reads": "reading the conversation from the cache",
    "new_text": "new text",
    "rewritten_after_pause": "sent in full again after a pause",
    "rewritten_while_alive": "sent in full again, although the cache was alive",
    "first_request": "first request of each conversation",
    "rewritten_after_compaction": "sent in full after a compaction",
    "output": "output",
}
PART_MEANINGS: Mapping[str, str] = {
    "reads": "cheap for each token, but every request reads everything again",
    "new_text": "prompts, results of tools, answers, when they are sent for the first time",
    "rewritten_after_pause": "the cache had expired",
    "rewritten_while_alive": "something early had changed; the likely causes are below",
    "first_request": "mostly the host's own prompt and tools",
    "rewritten_after_compaction": "the host had replaced the history by a summary",
    "output": "as far as the host has recorded it, which is too low",
}
RULE_NAMES: Mapping[str, str] = {
    "results_after_a_pause": "leave old results out after a pause",
    "results_behind_a_broken_prefix": "and where the cache was lost anyway",
    "small_results_edits_and_thinking": "and smaller results, texts of old edits, old thinking",
}
COLOURS = ("#4c78a8", "#72b7b2", "#e45756", "#f58518", "#54a24b", "#b279a2", "#9d755d")
CHART_WIDTH, CHART_HEIGHT = 900, 160
COLUMN_WIDTH_MAX = 60
EXPLANATION = (
    "An agent sends its whole conversation with every request. The provider keeps what it has seen in a cache for five "
    "minutes or an hour: reading it from there costs a tenth or less of sending it in full. The proxy leaves old "
    "results of tools out when that costs nothing, because the cache is lost anyway."
)
DAYS_SHOWN = 120
ROWS_SHOWN = 15
DEARER_SHOWN = 5

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
td small { display: block; color: var(--dim); font-size: .85rem; padding-left: 1.3rem; }
.dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
div.scroll { overflow-x: auto; } svg { width: 100%; height: auto; }
.bar { display: flex; height: 1.6rem; border-radius: .3rem; overflow: hidden; margin: .5rem 0; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .5rem; }
"""


def draw_page(audit: Mapping[str, Any]) -> str:
    """The page, from the values that `--json` prints."""
    lives, spent = audit["by_cache_life"], audit["spent_dollars"]
    body = [
        "<h1>What your agents cost, and what contextfold would have saved</h1>",
        f'<div class="cards">{"".join(_draw_cards(audit))}</div>',
        f"<p>{escape(EXPLANATION)}</p>",
        "<h2>Where the money went</h2>",
        *_draw_parts(audit["parts_dollars"], spent),
        "<h2>What each rule of the proxy would have saved</h2>",
        _table(
            ("rule", "saved", "of the bill"),
            (
                (RULE_NAMES[each["rule"]], dollars(each["saved_dollars"]), f"{each['saved_percent']:.1f} %")
                for each in audit["rules"]
            ),
        ),
        *_draw_dearer(audit),
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
        "<h2>Sent in full again, although the cache was alive: likely causes</h2>",
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
        *_draw_conversations(audit),
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


def _draw_cards(audit: Mapping[str, Any]) -> Iterable[str]:
    proxy, simulation = audit["with_proxy"], audit["simulation"]
    cards = [
        (
            "You spent",
            dollars(audit["spent_dollars"]),
            f"at list prices: {count_text(audit)}, {period(audit)}",
        ),
        (
            "With contextfold's proxy",
            dollars(proxy["dollars"]),
            f"{saving_text(proxy)}, without any action of the model. {dearer_text(proxy)}",
        ),
    ]
    if simulation["median_error_percent"] is not None:
        whole = f"{simulation['with_recorded_breaks_percent']:.1f} %"
        cards.append(("Can you trust this?", whole, f"of the bill {accuracy_rest(simulation)}"))
    for title, figure, text in cards:
        yield f'<div class="card">{escape(title)}<strong>{escape(figure)}</strong><p>{escape(text)}</p></div>'


def _draw_dearer(audit: Mapping[str, Any]) -> Iterable[str]:
    rows = [
        (
            f"{each['project']}, {each['day']}",
            f"{each['requests']:,}",
            dollars(each["spent_dollars"]),
            f"{dollars(-each['saved_dollars'])} ({-each['saved_percent']:.1f} %)",
        )
        for each in audit["dearer_conversations"][:DEARER_SHOWN]
    ]
    if rows:
        yield "<h2>Conversations that would have cost more</h2>"
        yield _table(("conversation", "requests", "spent", "more"), rows)


def _draw_parts(parts: Mapping[str, float], spent: float) -> Iterable[str]:
    shown = [(part, parts[part], colour) for part, colour in zip(PART_NAMES, COLOURS, strict=True)]
    pieces = [
        f'<div style="width:{percent(cost, spent, digits=2)};background:{colour}" '
        f'title="{escape(PART_NAMES[part])}"></div>'
        for part, cost, colour in shown
    ]
    yield f'<div class="bar">{"".join(pieces)}</div>'
    rows = [
        f'<tr><td><span class="key" style="background:{colour}"></span>{escape(PART_NAMES[part])}'
        f"<small>{escape(PART_MEANINGS[part])}</small></td>"
        f'<td class="n">{percent(cost, spent)}</td><td class="n">{dollars(cost)}</td></tr>'
        for part, cost, colour in shown
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
        columns.append(f"<g><title>{label}</title>{_column(at, step, spent / highest, COLOURS[2])}")
        columns.append(f"{_column(at, step, min(spent, rest) / highest, COLOURS[0])}</g>")
    name = "Spent by day; in blue what it would have been with the proxy"
    return (
        f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{name}">{"".join(columns)}</svg>'
        f'<p class="dim">From {days[0]["day"]} to {days[-1]["day"]}, days with requests only; the highest is '
        f"{dollars(highest)}. Blue is what the proxy would have left, red what it would have saved.</p>"
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


def _draw_conversations(audit: Mapping[str, Any]) -> Iterable[str]:
    """The most expensive conversations, with what each rule would have saved in them."""
    yield "<h2>Conversations that cost most</h2>"
    yield _table(
        ("conversation", "requests", "spent", *SHORT_RULE_NAMES.values(), "saved"),
        (
            (
                f"{each['project']}, {each['day']}",
                f"{each['requests']:,}",
                dollars(each["spent_dollars"]),
                *(dollars(each["saved_dollars_by_rule"][rule]) for rule in SHORT_RULE_NAMES),
                f"{dollars(each['saved_dollars'])} ({each['saved_percent']:.1f} %)",
            )
            for each in audit["largest_conversations"][:ROWS_SHOWN]
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


def count_text(audit: Mapping[str, Any]) -> str:
    counts = (("conversation", audit["conversations"]), ("request", audit["requests"]))
    return ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts)


def saving_text(proxy: Mapping[str, Any]) -> str:
    word = "less" if proxy["saved_dollars"] >= 0 else "more"
    return f"{dollars(abs(proxy['saved_dollars']))} {word} ({abs(proxy['saved_percent']):.1f} %)"


def accuracy_text(simulation: Mapping[str, Any]) -> str:
    """How well the simulation without the proxy reproduces the bill, in one sentence or two."""
    if simulation["median_error_percent"] is None:
        return ""
    whole = f"{simulation['with_recorded_breaks_percent']:.1f} %"
    return f"Can you trust this? {whole} of the bill {accuracy_rest(simulation)}"


def accuracy_rest(simulation: Mapping[str, Any]) -> str:
    return (
        "is what the same simulation gives without the proxy. Half of the conversations are within "
        f"{simulation['median_error_percent']:.1f} % of what was billed, nine of ten within "
        f"{simulation['p90_error_percent']:.1f} %."
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
        "compactions": "requests that only summarised a history, which hosts do not record",
        "transcripts_without_requests": "transcripts have no request with its usage",
    }
    counts = audit["left_out"]
    return [f"Left out: {counts[name]:,} {text}." for name, text in names.items() if counts[name]]


def prices_text(audit: Mapping[str, Any]) -> str:
    days = sorted({price["read_on"] for price in audit["prices"] if price["read_on"]})
    if not days:
        return ""
    return f"List prices as read {days[0] if days[0] == days[-1] else f'from {days[0]} to {days[-1]}'}; no discounts."
