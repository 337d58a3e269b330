"""The standard rules can be used; an error in an allowlist names the line, and says what to do."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from contextfold.scrub.rules import (
    RULE_ID,
    Allowlist,
    AllowlistInvalid,
    Rule,
    ValueShape,
    compile_bytes,
    parse_allowlist,
    parse_rules,
    read_rules_file,
)


@pytest.mark.parametrize("rule", parse_rules(read_rules_file()), ids=lambda rule: rule.id)
def test_every_standard_rule_can_find_something_and_can_be_named(rule: Rule) -> None:
    assert RULE_ID.fullmatch(rule.id)
    assert rule.description
    # A single letter occurs in nearly every text, so its rule would always run.
    assert rule.keywords
    assert all(len(keyword.encode()) >= 2 for keyword in rule.keywords)
    assert rule.shape in get_args(ValueShape)
    assert rule.entropy is None or 0 <= rule.entropy <= 8
    pattern = compile_bytes(rule.pattern)
    assert pattern.search(b"") is None
    assert 0 <= rule.group <= pattern.groups
    if rule.each:
        assert compile_bytes(rule.each).search(b"") is None
        assert compile_bytes(rule.each).groups >= 1


def test_no_two_standard_rules_have_one_id() -> None:
    ids = [rule.id for rule in parse_rules(read_rules_file())]
    assert len(ids) == len(set(ids))


def test_an_allowlist_has_values_patterns_and_rules() -> None:
    text = "# comment\n\n  a value with spaces \r\nre: ab+c\nrule: one\n#not a value\nrule:two"
    assert parse_allowlist(text) == Allowlist(frozenset({"a value with spaces"}), ("ab+c",), frozenset({"one", "two"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fine\nre:", "allowlist line 2: 're:' needs a pattern after it"),
        ("# c\n\nre:a(b", "allowlist line 3: RE2 cannot use this pattern (missing ): a(b): rewrite it"),
        ("rule:", "allowlist line 1: 'rule:' needs the id of a rule after it"),
        ("rule:Not An Id", "allowlist line 1: 'rule:' needs the id of a rule after it"),
    ],
)
def test_an_invalid_allowlist_line_is_refused_with_its_number(text: str, message: str) -> None:
    with pytest.raises(AllowlistInvalid, match=re.escape(message)):
        parse_allowlist(text)
