"""What counts as a secret and what a user lets through, read from text. Knows neither files nor texts to scrub.

Both readers are strict: a rule that silently does not work would be a leak.
"""

from __future__ import annotations

import re
import tomllib

import re2  # type: ignore[import-untyped]

from contextfold.common.record import Record

RULE_KEYS = {
    "id": str,
    "description": str,
    "keywords": list,
    "pattern": str,
    "group": int,
    "entropy": float,
    "words": bool,
}
REQUIRED_KEYS = ("id", "description", "keywords", "pattern")
RULE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
KEYWORD_BYTES = 2  # a single letter is in every text and would switch its rule on for all of them


class RulesInvalid(ValueError):
    """Rules or an allowlist that cannot be used; the text says where, why, and what to do."""


class Rule(Record):
    """One kind of secret. Without a group the whole match is secret; with an entropy the value has to look like one."""

    id: str
    description: str
    keywords: tuple[str, ...]
    pattern: str
    group: int = 0
    entropy: float | None = None
    words: bool = False


class Allowlist(Record):
    """What must not be redacted: exact values, values that match a pattern as a whole, rules turned off."""

    values: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    rules_off: frozenset[str] = frozenset()


def compiled(pattern: str, *, as_bytes: bool) -> re2._Regexp:
    """A pattern ready for use: on bytes one by one, which any text has, or on the characters of a value."""
    options = re2.Options()
    options.log_errors = False
    if not as_bytes:
        return re2.compile(pattern, options)
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(pattern.encode("utf-8"), options)


def rules_from(toml_text: str) -> tuple[Rule, ...]:
    """The rules of a TOML text in their order; RulesInvalid if any of them is not exactly as it should be."""
    try:
        tables = tomllib.loads(toml_text)
    except tomllib.TOMLDecodeError as problem:
        raise RulesInvalid(f"the rules are not TOML ({problem}): correct the syntax there") from problem
    if unknown := sorted(tables.keys() - {"rule"}):
        raise RulesInvalid(f"the rules have an unknown table {unknown[0]!r}: every rule stands under [[rule]]")
    entries = tables.get("rule", [])
    if not isinstance(entries, list) or not entries:
        raise RulesInvalid("the rules hold no rule: write at least one [[rule]] table")
    rules: dict[str, Rule] = {}
    for number, entry in enumerate(entries, start=1):
        rule = _rule(entry, number)
        if rule.id in rules:
            raise RulesInvalid(f"rule {rule.id!r} stands twice: give one of them another id")
        rules[rule.id] = rule
    return tuple(rules.values())


def _rule(entry: object, number: int) -> Rule:
    """One checked rule. It is named by its id once that is known, by its number before."""
    name = f"rule number {number}"
    if not isinstance(entry, dict):
        raise RulesInvalid(f"{name} is no table: write it as [[rule]]")
    if isinstance(entry.get("id"), str):
        name = f"rule {entry['id']!r}"
    if unknown := sorted(entry.keys() - RULE_KEYS.keys()):
        raise RulesInvalid(f"{name} has the unknown key {unknown[0]!r}: use {', '.join(RULE_KEYS)}")
    if missing := [key for key in REQUIRED_KEYS if key not in entry]:
        raise RulesInvalid(f"{name} lacks {missing[0]!r}: add it")
    for key, kind in RULE_KEYS.items():
        if key in entry and type(entry[key]) not in ((int, float) if kind is float else (kind,)):
            raise RulesInvalid(f"{name} has a {key} that is not {_KIND_NAMES[kind]}: correct its type")
    if not RULE_ID.fullmatch(entry["id"]):
        raise RulesInvalid(f"{name} has an id that cannot stand in a redaction: use a-z, 0-9 and single dashes")
    keywords = _keywords(entry["keywords"], name)
    groups = _groups(entry["pattern"], name)
    if not 0 <= entry.get("group", 0) <= groups:
        raise RulesInvalid(f"{name} has group {entry['group']}, but its pattern has {groups}: correct one of them")
    if entry.get("entropy", 0) < 0:
        raise RulesInvalid(f"{name} has a negative entropy: use bits per character, 0 to 8")
    return Rule(**(entry | {"keywords": keywords}))


def _keywords(given: list[object], name: str) -> tuple[str, ...]:
    keywords = tuple(keyword for keyword in given if isinstance(keyword, str))
    if not given or len(keywords) != len(given):
        raise RulesInvalid(f"{name} needs keywords that are strings: without one it would never run")
    if short := [keyword for keyword in keywords if len(keyword.encode()) < KEYWORD_BYTES]:
        raise RulesInvalid(f"{name} has the keyword {short[0]!r}: use at least {KEYWORD_BYTES} characters")
    return keywords


def _groups(pattern: str, name: str) -> int:
    """How many groups the pattern has, once it is known to work and not to find secrets in nothing."""
    try:
        regexp = compiled(pattern, as_bytes=True)
    except re2.error as problem:
        raise RulesInvalid(
            f"{name} has a pattern RE2 cannot use ({_said(problem)}): rewrite it in RE2 syntax"
        ) from problem
    if regexp.search(b"") is not None:
        raise RulesInvalid(f"{name} has a pattern that matches an empty text: let it ask for at least one character")
    return int(regexp.groups)


def _said(problem: Exception) -> str:
    said = problem.args[0] if problem.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


_KIND_NAMES = {str: "a string", int: "a whole number", list: "an array", float: "a number", bool: "true or false"}


def allowlist_from(text: str) -> Allowlist:
    """What a user's allowlist lets through: a value a line, `re:PATTERN`, `rule:ID`; `#` begins a comment line."""
    values: set[str] = set()
    patterns: list[str] = []
    rules_off: set[str] = set()
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("re:"):
            patterns.append(_allowed_pattern(line.removeprefix("re:").strip(), number))
        elif line.startswith("rule:"):
            rules_off.add(_rule_off(line.removeprefix("rule:").strip(), number))
        else:
            values.add(line)
    return Allowlist(frozenset(values), tuple(patterns), frozenset(rules_off))


def _allowed_pattern(pattern: str, number: int) -> str:
    if not pattern:
        raise RulesInvalid(f"allowlist line {number}: 're:' needs a pattern after it")
    try:
        compiled(pattern, as_bytes=False)
    except re2.error as problem:
        raise RulesInvalid(
            f"allowlist line {number}: RE2 cannot use this pattern ({_said(problem)}): rewrite it in RE2 syntax"
        ) from problem
    return pattern


def _rule_off(rule_id: str, number: int) -> str:
    if not RULE_ID.fullmatch(rule_id):
        raise RulesInvalid(
            f"allowlist line {number}: 'rule:' needs the id of a rule after it, as it stands in a redaction"
        )
    return rule_id
