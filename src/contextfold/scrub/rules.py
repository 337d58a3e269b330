"""Reads the rules and the user's allowlist from text. Knows neither files nor the texts that are scrubbed.

The rules are ours, so a test checks them (`tests/scrub/test_rules.py`). The allowlist is checked when it is read.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, Literal, NamedTuple

import re2  # type: ignore[import-untyped]

# The shapes of a loosely described value. Each shape also rejects what the shape before it rejects.
ValueShape = Literal["any", "no-word", "no-code", "random"]

RULE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# The group of a pattern with the name of the value.
NAME_GROUP = "name"
_FRAGMENT = re.compile(r"@\{([a-z-]+)\}")


class AllowlistInvalid(ValueError):
    """The message says where and why, and what to do."""


class Rule(NamedTuple):
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


class Allowlist(NamedTuple):
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
    """A pattern that matches single bytes, compiled when it is first used.

    With `longest` it finds the longest of the leftmost matches, and no groups.
    """

    def __init__(self, pattern: str, *, longest: bool = False) -> None:
        self._pattern = pattern
        self._longest = longest

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of a compiled pattern
        options = byte_options(log_errors=False, longest_match=self._longest, never_capture=self._longest)
        regexp = re2.compile(self._pattern.encode("utf-8"), options)
        for method in ("finditer", "fullmatch", "search"):
            setattr(self, method, getattr(regexp, method))
        return getattr(regexp, name)


def rules_from(toml_text: str) -> tuple[Rule, ...]:
    """The rules of a TOML text, in their order. A pattern and a fragment may use the fragments above them."""
    tables = tomllib.loads(toml_text)
    fragments: dict[str, str] = {}
    for name, text in tables.get("fragment", {}).items():
        fragments[name] = _expanded(text, fragments)
    rules = []
    for entry in tables["rule"]:
        patterns = {key: _expanded(entry[key], fragments) for key in ("pattern", "each") if key in entry}
        rules.append(Rule(**(entry | patterns | {"keywords": tuple(entry["keywords"])})))
    return tuple(rules)


def _expanded(pattern: str, fragments: dict[str, str]) -> str:
    """The pattern with each `@{fragment}` replaced."""
    return _FRAGMENT.sub(lambda used: fragments[used.group(1)], pattern)


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
                raise AllowlistInvalid(
                    f"allowlist line {number}: 'rule:' needs the id of a rule after it, as a redaction shows it"
                )
            rules_off.add(rule_id)
        else:
            values.add(line)
    return Allowlist(frozenset(values), tuple(patterns), frozenset(rules_off))


def _allowed_pattern(pattern: str, number: int) -> str:
    if not pattern:
        raise AllowlistInvalid(f"allowlist line {number}: 're:' needs a pattern after it")
    try:
        compiled(pattern, as_bytes=False)
    except re2.error as problem:
        reason = problem.args[0] if problem.args else b""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise AllowlistInvalid(
            f"allowlist line {number}: RE2 cannot use this pattern ({text}): rewrite it in RE2 syntax"
        ) from problem
    return pattern
