"""Rules and allowlists are validated: each error names the rule or the line, and says what to do."""

from __future__ import annotations

import re

import pytest

from contextfold.scrub.rules import Allowlist, Rule, RulesInvalid, allowlist_from, rules_from

GOOD = """
[[rule]]
id = "one"
description = "first"
keywords = ["on"]
pattern = 'on(e)'
group = 1
entropy = 2
shape = "any"
"""


def good_rules_with(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_rules_are_read_in_their_order() -> None:
    second = '[[rule]]\nid = "two"\ndescription = "d"\nkeywords = ["tw"]\npattern = "two"\n'
    assert rules_from(GOOD + second) == (
        Rule("one", "first", ("on",), "on(e)", 1, 2, "any"),
        Rule("two", "d", ("tw",), "two"),
    )


def test_patterns_and_fragments_may_use_fragments_defined_before_them() -> None:
    fragments = "[fragment]\ndigit = '[0-9]'\nnumber = '@{digit}+'\n"
    (rule,) = rules_from(fragments + good_rules_with("'on(e)'", "'on(@{number})'"))
    assert rule.pattern == "on([0-9]+)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule", "the rules are not TOML"),
        ("", "the rules contain no rule: write at least one [[rule]] table"),
        ("rule = 3", "the rules contain no rule"),
        ("rule = [3]", "rule number 1 is not a table: write it as [[rule]]"),
        ("[rules]\n" + GOOD, "unknown table 'rules': use [fragment] and [[rule]]"),
        (good_rules_with('shape = "any"', "word = true"), "rule 'one' has the unknown key 'word': use id, description"),
        (good_rules_with('description = "first"', ""), "rule 'one' lacks 'description': add it"),
        (good_rules_with('id = "one"', ""), "rule number 1 lacks 'id': add it"),
        (good_rules_with('id = "one"', "id = 1"), "rule number 1 has a id that is not a string"),
        (good_rules_with('id = "one"', 'id = "One"'), "that a redaction cannot show: use a-z, 0-9 and single dashes"),
        (good_rules_with('["on"]', "[]"), "rule 'one' needs keywords that are strings"),
        (good_rules_with('["on"]', "[1]"), "rule 'one' needs keywords that are strings"),
        (good_rules_with('["on"]', '"on"'), "rule 'one' has a keywords that is not an array"),
        (good_rules_with('["on"]', '["o"]'), "rule 'one' has the keyword 'o': use at least 2 characters"),
        (good_rules_with("'on(e)'", "'on(e'"), "rule 'one' has a pattern RE2 cannot use (missing ): on(e): rewrite it"),
        (good_rules_with("'on(e)'", "'(?=on)(e)'"), "rule 'one' has a pattern RE2 cannot use"),
        (good_rules_with("'on(e)'", "'(e)*'"), "rule 'one' has a pattern that matches an empty text"),
        (good_rules_with("group = 1", "group = 2"), "rule 'one' has group 2, but its pattern has 1"),
        (good_rules_with("group = 1", "group = true"), "rule 'one' has a group that is not a whole number"),
        (good_rules_with("entropy = 2", "entropy = -1"), "rule 'one' has a negative entropy"),
        (good_rules_with("entropy = 2", 'entropy = "2"'), "rule 'one' has a entropy that is not a number"),
        (good_rules_with('"any"', '"some"'), "rule 'one' has an unknown shape: use any, no-word, no-code, random"),
        (good_rules_with("'on(e)'", "'@{two}on(e)'"), "rule 'one' uses the unknown fragment 'two': define it above"),
        ('[fragment]\none = "@{two}"\n' + GOOD, "fragment 'one' uses the unknown fragment 'two'"),
        ("[fragment]\none = 1\n" + GOOD, "the table [fragment] may contain strings only"),
        (GOOD + GOOD, "rule 'one' is defined twice: give one of them another id"),
    ],
)
def test_invalid_rules_are_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(RulesInvalid, match=re.escape(message)):
        rules_from(text)


def test_an_allowlist_has_values_patterns_and_rules() -> None:
    text = "# comment\n\n  a value with spaces \r\nre: ab+c\nrule: one\n#not a value\nrule:two"
    assert allowlist_from(text) == Allowlist(frozenset({"a value with spaces"}), ("ab+c",), frozenset({"one", "two"}))


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
    with pytest.raises(RulesInvalid, match=re.escape(message)):
        allowlist_from(text)
