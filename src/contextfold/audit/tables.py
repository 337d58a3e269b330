"""The audit in words and tables, which the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from contextfold.common.answer_format import MICROS_PER_DOLLAR, format_count, format_dollars

# What each part of a bill is called, and what it means.
PARTS_IN_WORDS: Mapping[str, tuple[str, str]] = {
    "reads": (
        "reading the conversation from the cache",
        "cheap for each token, but every request reads everything again",
    ),
    "new_text": ("new text", "prompts, results of tools, answers, when they are sent for the first time"),
    "rewritten_after_pause": ("sent in full again after a pause", "the cache had expired"),
    "rewritten_while_alive": (
        "sent in full again, although the cache was alive",
        "something early had changed; the likely causes are below",
    ),
    "first_request": ("first request of each conversation", "mostly the agent's own prompt and tools"),
    "rewritten_after_compaction": (
        "sent in full after a compaction",
        "the agent had replaced the history by a summary",
    ),
    "output": ("output", "as far as it is recorded, which is too low"),
}
RULES_IN_WORDS: Mapping[str, str] = {
    "results_after_a_pause": "leave old results out after a pause",
    "results_behind_a_broken_prefix": "and where the agent had likely changed something early",
    "small_results_edits_and_thinking": "and smaller results, texts of old edits, old thinking",
}
LIVES_IN_WORDS: Mapping[str, str] = {"5m": "five minutes", "1h": "an hour"}
EXPLANATION = (
    "An agent sends its whole conversation with every request. The provider keeps what it has seen in a cache for five "
    "minutes or an hour: reading it from there costs a tenth or less of sending it in full. The proxy leaves old "
    "results of tools out when that costs nothing, because the cache is lost anyway."
)

NEXT_STEP = "To try it in one session: context run claude (or codex). No file of your project changes."


class Table(NamedTuple):
    """A table whose first column is text and whose other columns are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    # How many more rows `--json` has.
    more: int = 0


def list_tables(audit: Mapping[str, Any], rows_most: int) -> Iterator[Table]:
    """The tables that say something, the most telling first."""
    yield Table(
        "What each rule of the proxy would have saved",
        ("rule", "saved", "of the bill"),
        [
            (RULES_IN_WORDS[each["rule"]], dollars(each["saved_dollars"]), f"{each['saved_percent']:.1f} %")
            for each in audit["rules"]
        ],
    )
    yield Table(
        "If every cache had lived for …",
        ("life", "without", "with the proxy", "saved"),
        [
            (
                LIVES_IN_WORDS[life],
                dollars(each["without_dollars"]),
                dollars(each["with_dollars"]),
                f"{each['saved_percent']:.1f} %",
            )
            for life, each in audit["by_cache_life"].items()
        ],
    )
    dearer = audit["dearer_conversations"]
    if dearer:
        yield Table(
            "Conversations that would have cost more",
            ("conversation", "requests", "spent", "more"),
            [
                (
                    _conversation_name(each),
                    f"{each['requests']:,}",
                    dollars(each["spent_dollars"]),
                    f"{dollars(-each['saved_dollars'])} ({-each['saved_percent']:.1f} %)",
                )
                for each in dearer[:rows_most]
            ],
            len(dearer[rows_most:]),
        )
    causes = audit["rewritten_while_alive"]
    if causes:
        yield Table(
            "Sent in full again, although the cache was alive",
            ("likely cause", "times", "tokens", "cost"),
            [
                (each["likely_cause"], f"{each['events']:,}", f"{each['tokens']:,}", dollars(each["dollars"]))
                for each in causes
            ],
        )
    if audit["results"]:
        yield Table(
            "Results of tools that cost most",
            ("result", "tokens", "sent in requests", "cost"),
            [
                (
                    f"{each['tool']} {each['subject'] or ''}".strip(),
                    f"{each['tokens']:,}",
                    f"{each['requests']:,}",
                    dollars(each["dollars"]),
                )
                for each in audit["results"]
            ],
        )
    for name in ("project", "model"):
        groups = audit[f"{name}s"]
        rows = [(each[name] or "unknown", *_sums(each)) for each in groups[:rows_most]]
        yield Table(f"{name.capitalize()}s", (name, *_SUMS), rows, len(groups[rows_most:]))
    days = audit["days"]
    rows = [(each["day"], *_sums(each)) for each in days[-rows_most:]]
    yield Table("The latest days", ("day", *_SUMS), rows, len(days[:-rows_most]))
    conversations = audit["largest_conversations"]
    yield Table(
        "Conversations that cost most",
        ("conversation", *_SUMS, "after a pause", "early changes", "the rest"),
        [
            (_conversation_name(each), *_sums(each), *map(dollars, each["saved_dollars_by_rule"].values()))
            for each in conversations[:rows_most]
        ],
        audit["conversations"] - len(conversations[:rows_most]),
    )


_SUMS = ("requests", "spent", "saved")


def _sums(each: Mapping[str, Any]) -> tuple[str, ...]:
    saved = f"{dollars(each['saved_dollars'])} ({each['saved_percent']:.1f} %)"
    return f"{each['requests']:,}", dollars(each["spent_dollars"]), saved


def _conversation_name(each: Mapping[str, Any]) -> str:
    return f"{each['day']}, {each['project'] or 'unknown'}{', subagent' if each['subagent'] else ''}"


# ---- words


def dollars(amount: float) -> str:
    return format_dollars(round(amount * MICROS_PER_DOLLAR))


def spent_text(audit: Mapping[str, Any]) -> str:
    """How much that was: conversations, requests, days."""
    counts = f"{format_count(audit['conversations'], 'conversation')}, {format_count(audit['requests'], 'request')}"
    days = audit["from"] if audit["from"] == audit["to"] else f"{audit['from']} to {audit['to']}"
    return f"at list prices: {counts}, {days}"


def saved_text(proxy: Mapping[str, Any]) -> str:
    amount = dollars(abs(proxy["saved_dollars"]))
    if amount == dollars(0):
        return "the same"
    return f"{amount} {'less' if proxy['saved_dollars'] > 0 else 'more'} ({abs(proxy['saved_percent']):.1f} %)"


def difference_text(proxy: Mapping[str, Any]) -> str:
    """The same as a share alone."""
    percent = f"{abs(proxy['saved_percent']):.1f} %"
    if percent == "0.0 %":
        return "the same"
    return f"{percent} {'less' if proxy['saved_percent'] > 0 else 'more'}"


def dearer_text(proxy: Mapping[str, Any]) -> str:
    count = proxy["conversations_dearer"]
    if not count:
        return "No conversation would have cost more."
    return f"{format_count(count, 'conversation')} would have cost more, the worst by {proxy['worst_percent']:.1f} %."


def error_text(simulation: Mapping[str, Any]) -> str:
    """How far the simulation is from the bill."""
    return f"{abs(simulation['with_recorded_breaks_percent'] - 100):.1f} % error"


def accuracy_text(simulation: Mapping[str, Any]) -> str:
    """How well the simulation without the proxy reproduces the bill."""
    return (
        f"The same replay without the proxy gives {simulation['with_recorded_breaks_percent']:.1f} % of the recorded "
        f"bill. Half of the conversations are within {simulation['median_error_percent']:.1f} % of theirs, nine of ten "
        f"within {simulation['p90_error_percent']:.1f} %."
    )


def unseen_text(simulation: Mapping[str, Any]) -> str:
    """What the simulation takes from the record because no transcript has it."""
    return (
        "Where a cache was lost although no transcript shows why, the replay takes that from the provider's usage; "
        f"from times and texts alone it would give {simulation['from_times_and_texts_percent']:.1f} % of the bill."
    )


def left_out_texts(audit: Mapping[str, Any]) -> Iterable[str]:
    """A sentence for each kind of thing that the figures do not contain."""
    names = {
        "broken_lines": "line that could not be parsed",
        "long_lines": "line longer than 64 MiB",
        "unreadable_files": "path that could not be read",
        "requests_without_usage": "request without usage or time",
        "requests_of_unknown_models": "request of a model without a known price",
        "compactions": "request that only summarised a history, whose usage is not recorded",
        "transcripts_without_requests": "transcript without a request and its usage",
    }
    for name, text in names.items():
        count, (noun, rest) = audit["left_out"][name], text.split(" ", 1)
        if count:
            yield f"Left out: {format_count(count, noun)} {rest}."


def prices_text(audit: Mapping[str, Any]) -> str:
    days = sorted({price["read_on"] for price in audit["prices"] if price["read_on"]})
    if not days:
        return ""
    read = days[0] if days[0] == days[-1] else f"from {days[0]} to {days[-1]}"
    return f"List prices as read {read}; no discounts, and no surcharges for long prompts or faster answers."
