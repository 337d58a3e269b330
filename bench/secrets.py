"""The figures of the scrubber: speed, recall on three labelled sets, and false alarms."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import re2  # type: ignore[import-untyped]

from bench.everyday_secrets import everyday_secrets
from bench.figures import Figure, in_turns, print_table, report_progress, show
from bench.heldout_secrets import heldout_secrets
from bench.labelled_secrets import Labelled, SecretSource, negatives, positives
from contextfold.scrub.rules import Rule, parse_rules
from contextfold.scrub.scrubber import Scrubber, standard_scrubber

SEEDS = range(20)
# The size and the files of the source trees in which redactions are counted.
TREE_BYTES = 12_000_000
SOURCE_SUFFIXES = frozenset((".py", ".pyi", ".js", ".ts", ".c", ".h", ".md", ".txt", ".json", ".toml", ".cfg"))
SMALL, HOSTILE, LARGE = 2_048, 24_000, 1_000_000
MISSED_LIMIT = 0.05
EVERYDAY_MISSED_LIMIT = 0.04
# Redactions in a megabyte of source code. Examples of secrets in documentation and tests count.
ALARMS_LIMIT = 1.0
MISTAKEN_LIMIT = 0.05
# Each limit has room for a busy machine. The measured values were 0.01, 0.19, 0.03, 0.05 and 1.0.
PLAIN_LIMIT, RICH_LIMIT, LARGE_LIMIT, HOSTILE_LIMIT, DOUBLED_LIMIT = 0.05, 0.6, 0.25, 0.6, 1.8

PROSE = "The fold keeps what the branch found and drops how it was found; the summary goes back to the main thread. "
HOSTILE_UNITS = (
    'password="',
    "password=\"a' password='b\" ",
    "mysql -p ",
    "curl -",
    "A_TOKEN=",
    "http://u:",
    "base64/base64/base64/0+\n",
)


class PlainScanner:
    """The yardstick: every rule on every text, with Python's `re`."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.patterns = [re.compile(rule.pattern.encode()) for rule in rules]

    def scan(self, text: str) -> int:
        raw = text.encode()
        return sum(1 for pattern in self.patterns for _ in pattern.finditer(raw))


def our_rules() -> tuple[Rule, ...]:
    return parse_rules(files("contextfold.scrub").joinpath("rules.toml").read_text(encoding="utf-8"))


def filled(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]


def keyword_rich(rules: Sequence[Rule]) -> str:
    """Text that makes many rules run and has almost no secrets."""
    words = sorted({keyword for rule in rules for keyword in rule.keywords})
    SecretSource(1).random.shuffle(words)
    return filled(" and ".join(words), SMALL)


def source_code(size: int) -> str:
    # This is the standard library, which every machine has.
    folder = Path(re.__file__).parent.parent
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.py")))
    return text[:size]


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.001 else f"{seconds * 1e3:,.1f} ms"


def speed(name: str, turns: int, ours: Callable[[], object], theirs: Callable[[], object], limit: float) -> Figure:
    ours()
    ours_s, plain_s = (statistics.median(seconds) for seconds in in_turns(turns, ours, theirs))
    return Figure(name, us(ours_s), f"the rules under re, no prefilter {us(plain_s)}", ours_s / plain_s, limit)


def doubled(scrubber: Scrubber, unit: str, turns: int) -> float:
    """The cost of the second half of a hostile text relative to the first: 1 if the time is linear."""
    half, whole = filled(unit, HOSTILE // 2), filled(unit, HOSTILE)
    short, long = in_turns(turns, lambda: scrubber.scrub(half), lambda: scrubber.scrub(whole))
    return min(long) / min(short) - 1


def speed_figures(scrubber: Scrubber, turns: int) -> list[Figure]:
    rules = our_rules()
    yardstick = PlainScanner(rules)
    texts = (
        ("plain text, 2 KB", filled(PROSE, SMALL), 3 * turns, PLAIN_LIMIT),
        ("keyword-rich text, 2 KB", keyword_rich(rules), 3 * turns, RICH_LIMIT),
        ("source code, 1 MB", source_code(LARGE), max(1, turns // 4), LARGE_LIMIT),
    )
    figures = [
        speed(name, count, lambda t=text: scrubber.scrub(t), lambda t=text: yardstick.scan(t), limit)  # type: ignore[misc]
        for name, text, count, limit in texts
    ]
    hostile = [filled(unit, HOSTILE) for unit in HOSTILE_UNITS]
    figures.append(
        speed(
            f"{len(hostile)} hostile texts, 24 KB each",
            max(1, turns // 4),
            lambda: [scrubber.scrub(text) for text in hostile],
            lambda: [yardstick.scan(text) for text in hostile],
            HOSTILE_LIMIT,
        )
    )
    growth = {unit: doubled(scrubber, unit, turns) for unit in HOSTILE_UNITS}
    steepest = max(growth.values())
    figures.append(
        Figure("the steepest: its second half", f"{steepest:.2f} ×", "its first half", steepest, DOUBLED_LIMIT)
    )
    return figures


def half_remains(scrubber: Scrubber, labelled: Labelled) -> bool:
    """Whether half of the secret or more can still be read in one piece. The names of rules are not counted."""
    text = re.sub(r"\[REDACTED:[a-z0-9-]+\]", "\n", scrubber.scrub(labelled.text).text)
    half = (len(labelled.secret) + 1) // 2
    return any(labelled.secret[offset : offset + half] in text for offset in range(len(labelled.secret) - half + 1))


def families(name: str, scrubber: Scrubber, sets: Sequence[Labelled]) -> list[tuple[str, ...]]:
    """A row for each family of a set: how many of its secrets were found."""
    total = Counter(labelled.kind.partition(":")[0] for labelled in sets)
    missed = Counter(labelled.kind.partition(":")[0] for labelled in sets if half_remains(scrubber, labelled))
    return [
        (name, family, f"{count - missed[family]} of {count}", f"{1 - missed[family] / count:.1%}")
        for family, count in total.items()
    ]


def source_trees() -> list[str]:
    """Files of the installed packages, chosen at random with a fixed seed."""
    folder = Path(re2.__file__).parent.parent
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SOURCE_SUFFIXES and path.is_file())
    SecretSource(2).random.shuffle(paths)
    texts: list[str] = []
    size = 0
    for path in paths:
        if size >= TREE_BYTES:
            break
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(texts[-1])
    return texts


def false_alarms(scrubber: Scrubber) -> Figure:
    texts = source_trees()
    megabytes = sum(map(len, texts)) / 1e6
    redactions = sum(scrubber.scrub(text).redactions for text in texts)
    return Figure(
        "redactions in source trees",
        f"{redactions} in {megabytes:.1f} MB",
        "1 per MB",
        redactions / megabytes,
        ALARMS_LIMIT,
    )


def share(name: str, wrong: Counter[str], total: int, limit: float) -> Figure:
    count = sum(wrong.values())
    return Figure(name, f"{count} of {total:,}", f"{limit:.0%} of them", count / total, limit)


def print_counts(what: str, wrong: Counter[str], each: int) -> None:
    kinds = ", ".join(f"{kind} {count}/{each}" for kind, count in wrong.most_common())
    print(f"  {what}: {kinds or 'none'}")


def main(turns: int = 9) -> bool:
    report_progress("secrets")
    scrubber = standard_scrubber()
    figures = speed_figures(scrubber, turns)
    with_secret = [labelled for seed in SEEDS for labelled in positives(seed)]
    without = [labelled for seed in SEEDS for labelled in negatives(seed)]
    missed = Counter(labelled.kind for labelled in with_secret if half_remains(scrubber, labelled))
    mistaken = Counter(labelled.kind for labelled in without if scrubber.scrub(labelled.text).redactions)
    figures.append(share("secrets missed", missed, len(with_secret), MISSED_LIMIT))
    rows: list[tuple[str, ...]] = [("set", "family", "found", "recall")]
    for name, generate in (("development", everyday_secrets), ("held-out", heldout_secrets)):
        sets = [labelled for seed in SEEDS for labelled in generate(seed)]
        wrong = Counter(labelled.kind for labelled in sets if half_remains(scrubber, labelled))
        figures.append(share(f"everyday secrets missed, {name} set", wrong, len(sets), EVERYDAY_MISSED_LIMIT))
        rows += families(name, scrubber, sets)
    figures.append(false_alarms(scrubber))
    figures.append(share("texts redacted by mistake", mistaken, len(without), MISTAKEN_LIMIT))
    is_within = show("secrets", figures)
    print_table(rows)
    print_counts("missed", missed, len(SEEDS))
    print_counts("by mistake", mistaken, len(SEEDS))
    return is_within
