"""Reads the standard rules from the package, and rules and a user's allowlist from text.

The rules are ours, so a test checks them (`tests/scrub/test_rules.py`). The allowlist is checked when it is read.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import re2  # type: ignore[import-untyped]

# The shapes of a loosely described value. Each shape also rejects what the shape before it rejects.
ValueShape = Literal["any", "no-word", "no-code", "random"]

# A compiled pattern and a match; the library has no public names for their types.
Pattern = Any
Match = Any

RULES_FILE = Path(__file__).with_name("rules.toml")
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


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern that matches characters. Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def compile_bytes(pattern: str | bytes, **named: int) -> Pattern:
    """Compile a pattern that matches single bytes, with these options of RE2."""
    raw = pattern.encode("utf-8") if isinstance(pattern, str) else pattern
    return re2.compile(raw, byte_options(log_errors=False, **named))


def byte_options(**named: int) -> re2.Options:
    """The options of a pattern that matches single bytes, and these."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    for name, value in named.items():
        setattr(options, name, value)
    return options


def read_rules_file() -> str:
    return RULES_FILE.read_text(encoding="utf-8")


def parse_rules(toml_text: str) -> tuple[Rule, ...]:
    """The rules of a TOML text, in their order. A pattern and a fragment may use the fragments above them."""
    tables = tomllib.loads(toml_text)
    fragments: dict[str, str] = {}
    for name, text in tables.get("fragment", {}).items():
        fragments[name] = _expand(text, fragments)
    rules = []
    for entry in tables["rule"]:
        patterns = {key: _expand(entry[key], fragments) for key in ("pattern", "each") if key in entry}
        rules.append(Rule(**(entry | patterns | {"keywords": tuple(entry["keywords"])})))
    return tuple(rules)


def _expand(pattern: str, fragments: dict[str, str]) -> str:
    """Replace each `@{fragment}` of a pattern."""
    return _FRAGMENT.sub(lambda used: fragments[used.group(1)], pattern)


def parse_allowlist(text: str) -> Allowlist:
    """A user's allowlist: one value, `re:PATTERN` or `rule:ID` per line; a line that starts with `#` is a comment."""
    values: set[str] = set()
    patterns: list[str] = []
    rules_off: set[str] = set()
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("re:"):
            patterns.append(_check_pattern(line.removeprefix("re:").strip(), number))
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


def _check_pattern(pattern: str, number: int) -> str:
    if not pattern:
        raise AllowlistInvalid(f"allowlist line {number}: 're:' needs a pattern after it")
    try:
        compile_pattern(pattern)
    except re2.error as problem:
        reason = problem.args[0] if problem.args else b""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise AllowlistInvalid(
            f"allowlist line {number}: RE2 cannot use this pattern ({text}): rewrite it in RE2 syntax"
        ) from problem
    return pattern
