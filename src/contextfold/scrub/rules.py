"""Reads the rules and the user's allowlist from text. Knows neither files nor the texts that are scrubbed.

Both readers are strict, because a rule that silently does not work would be a leak.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, Literal, get_args

import re2  # type: ignore[import-untyped]

from contextfold.common.record import Record

# The shapes of a loosely described value. Each shape also rejects what the shape before it rejects.
ValueShape = Literal["any", "no-word", "no-code", "random"]

RULE_KEYS = {
    "id": str,
    "description": str,
    "keywords": list,
    "pattern": str,
    "group": int,
    "entropy": float,
    "shape": str,
    "each": str,
    "decode": bool,
    "near": bool,
}
REQUIRED_KEYS = ("id", "description", "keywords", "pattern")
RULE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# The group of a pattern with the name of the value.
NAME_GROUP = "name"
# A keyword has at least this many bytes. A single letter occurs in nearly every text, so its rule would always run.
KEYWORD_BYTES = 2
_FRAGMENT = re.compile(r"@\{([a-z-]+)\}")


class RulesInvalid(ValueError):
    """Rules or an allowlist are invalid; the message says where, why, and what to do."""


class Rule(Record):
    """One kind of secret; the head of `rules.toml` explains the fields."""

    id: str
    description: str
    keywords: tuple[str, ...]
    pattern: str
    group: int = 0
    entropy: float | None = None
    shape: ValueShape = "no-code"
    each: str = ""
    decode: bool = False
    near: bool = False


class Allowlist(Record):
    """The values that are not redacted: exact values, and values that match a pattern; also the disabled rules."""

    values: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    rules_off: frozenset[str] = frozenset()


def compiled(pattern: str, *, as_bytes: bool) -> re2._Regexp:
    """A compiled RE2 pattern that matches single bytes, or the characters of a decoded value."""
    if as_bytes:
        return re2.compile(pattern.encode("utf-8"), byte_options(log_errors=False))
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def byte_options(**named: int) -> re2.Options:
    """The options of a pattern that matches single bytes, and these."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    for name, value in named.items():
        setattr(options, name, value)
    return options


class DeferredPattern:
    """A pattern that matches single bytes. It is compiled when it is first used."""

    def __init__(self, pattern: str, *, longest: bool = False) -> None:
        self._pattern = pattern
        self._longest = longest

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of a compiled pattern
        regexp = longest(self._pattern.encode()) if self._longest else compiled(self._pattern, as_bytes=True)
        for method in ("finditer", "fullmatch", "search"):
            setattr(self, method, getattr(regexp, method))
        return getattr(regexp, name)


def longest(pattern: bytes) -> re2._Regexp:
    """A pattern that finds the longest of the leftmost matches, and no groups."""
    return re2.compile(pattern, byte_options(longest_match=True, never_capture=True))


def rules_from(toml_text: str, *, checks_patterns: bool = True) -> tuple[Rule, ...]:
    """The rules of a TOML text in their order; raises RulesInvalid if any of them cannot be used.

    Checking the patterns means compiling them.
    """
    try:
        tables = tomllib.loads(toml_text)
    except tomllib.TOMLDecodeError as problem:
        raise RulesInvalid(f"the rules are not TOML ({problem}): correct the syntax there") from problem
    if unknown := sorted(tables.keys() - {"rule", "fragment"}):
        raise RulesInvalid(f"the rules have an unknown table {unknown[0]!r}: use [fragment] and [[rule]]")
    fragments = _fragments(tables.get("fragment", {}))
    entries = tables.get("rule", [])
    if not isinstance(entries, list) or not entries:
        raise RulesInvalid("the rules contain no rule: write at least one [[rule]] table")
    rules: dict[str, Rule] = {}
    for number, entry in enumerate(entries, start=1):
        rule = _rule(entry, number, fragments)
        if checks_patterns:
            _check_patterns(rule)
        if rule.id in rules:
            raise RulesInvalid(f"rule {rule.id!r} is defined twice: give one of them another id")
        rules[rule.id] = rule
    return tuple(rules.values())


def _fragments(table: object) -> dict[str, str]:
    """The named parts of patterns. A fragment may use the fragments above it."""
    if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
        raise RulesInvalid("the table [fragment] may contain strings only: correct its entries")
    fragments: dict[str, str] = {}
    for name, text in table.items():
        fragments[name] = _expanded(text, fragments, f"fragment {name!r}")
    return fragments


def _expanded(pattern: str, fragments: dict[str, str], name: str) -> str:
    """The pattern with each `@{fragment}` replaced."""
    if unknown := [used for used in _FRAGMENT.findall(pattern) if used not in fragments]:
        raise RulesInvalid(f"{name} uses the unknown fragment {unknown[0]!r}: define it above in [fragment]")
    return _FRAGMENT.sub(lambda used: fragments[used.group(1)], pattern)


def _rule(entry: object, number: int, fragments: dict[str, str]) -> Rule:
    """One checked rule. An error names it by its id, or by its number while the id is unknown."""
    name = f"rule number {number}"
    if not isinstance(entry, dict):
        raise RulesInvalid(f"{name} is not a table: write it as [[rule]]")
    if isinstance(entry.get("id"), str):
        name = f"rule {entry['id']!r}"
    if unknown := sorted(entry.keys() - RULE_KEYS.keys()):
        raise RulesInvalid(f"{name} has the unknown key {unknown[0]!r}: use {', '.join(RULE_KEYS)}")
    if missing := [key for key in REQUIRED_KEYS if key not in entry]:
        raise RulesInvalid(f"{name} lacks {missing[0]!r}: add it")
    _check_fields(entry, name)
    keywords = _keywords(entry["keywords"], name)
    pattern, each = (_expanded(entry.get(key, ""), fragments, name) for key in ("pattern", "each"))
    return Rule(**(entry | {"keywords": keywords, "pattern": pattern, "each": each}))


def _check_patterns(rule: Rule) -> None:
    name = f"rule {rule.id!r}"
    groups = _groups(rule.pattern, name)
    if rule.each:
        _groups(rule.each, name)
    if not 0 <= rule.group <= groups:
        raise RulesInvalid(f"{name} has group {rule.group}, but its pattern has {groups}: correct one of them")


def _check_fields(entry: dict[str, Any], name: str) -> None:
    """Raise RulesInvalid unless every field has the right type and a possible value."""
    for key, kind in RULE_KEYS.items():
        if key in entry and type(entry[key]) not in ((int, float) if kind is float else (kind,)):
            raise RulesInvalid(f"{name} has a {key} that is not {_KIND_NAMES[kind]}: correct its type")
    if not RULE_ID.fullmatch(entry["id"]):
        raise RulesInvalid(f"{name} has an id that a redaction cannot show: use a-z, 0-9 and single dashes")
    if entry.get("shape", "any") not in get_args(ValueShape):
        raise RulesInvalid(f"{name} has an unknown shape: use {', '.join(get_args(ValueShape))}")
    if entry.get("entropy", 0) < 0:
        raise RulesInvalid(f"{name} has a negative entropy: use bits per character, 0 to 8")


def _keywords(given: list[object], name: str) -> tuple[str, ...]:
    keywords = tuple(keyword for keyword in given if isinstance(keyword, str))
    if not given or len(keywords) != len(given):
        raise RulesInvalid(f"{name} needs keywords that are strings: without one it would never run")
    if short := [keyword for keyword in keywords if len(keyword.encode()) < KEYWORD_BYTES]:
        raise RulesInvalid(f"{name} has the keyword {short[0]!r}: use at least {KEYWORD_BYTES} characters")
    return keywords


def _groups(pattern: str, name: str) -> int:
    """The number of groups of a pattern; raises RulesInvalid if RE2 rejects it or if it matches an empty text."""
    try:
        regexp = compiled(pattern, as_bytes=True)
    except re2.error as problem:
        raise RulesInvalid(
            f"{name} has a pattern RE2 cannot use ({_error_text(problem)}): rewrite it in RE2 syntax"
        ) from problem
    if regexp.search(b"") is not None:
        raise RulesInvalid(f"{name} has a pattern that matches an empty text: let it ask for at least one character")
    return int(regexp.groups)


def _error_text(problem: Exception) -> str:
    text = problem.args[0] if problem.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


_KIND_NAMES = {str: "a string", int: "a whole number", list: "an array", float: "a number", bool: "true or false"}


def allowlist_from(text: str) -> Allowlist:
    """A user's allowlist: one value, `re:PATTERN` or `rule:ID` per line; a line that starts with `#` is a comment."""
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
            rule_id = line.removeprefix("rule:").strip()
            if not RULE_ID.fullmatch(rule_id):
                raise RulesInvalid(
                    f"allowlist line {number}: 'rule:' needs the id of a rule after it, as a redaction shows it"
                )
            rules_off.add(rule_id)
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
            f"allowlist line {number}: RE2 cannot use this pattern ({_error_text(problem)}): rewrite it in RE2 syntax"
        ) from problem
    return pattern
