"""The scrubber redacts secrets and nothing else, and does not change a scrubbed text."""

from __future__ import annotations

import base64
import json
import re
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.scrub import scrubber as scrubber_module
from contextfold.scrub.rules import Allowlist, AllowlistInvalid, Rule, parse_allowlist
from contextfold.scrub.scrubber import Scrubber, standard_scrubber
from tests.support.known_secrets import known_secrets
from tests.support.machine import times

MARKER = re.compile(r"\[REDACTED:[a-z0-9-]+\]")
SIMPLE = Rule("simple", "a letter and digits", ("sec",), r"sec[0-9]{4,}")
LOOSE = Rule("loose", "what follows a name", ("name=",), r"name=([^\s;]+)", group=1, entropy=1.0, shape="any")


def scrubber_with(*rules: Rule, allowlist: str = "") -> Scrubber:
    return Scrubber(rules or (SIMPLE, LOOSE), parse_allowlist(allowlist))


@cache
def standard() -> Scrubber:
    return standard_scrubber()


SECRET_TEXTS = st.integers(0, 30).flatmap(lambda seed: st.sampled_from([known.text for known in known_secrets(seed)]))
SECRET_VALUES = st.integers(0, 30).flatmap(lambda seed: st.sampled_from([known.value for known in known_secrets(seed)]))
MARKERS = st.sampled_from(
    [
        "[REDACTED:json-web-token]",
        "[REDACTED:password-plain]",
        "[REDACTED:unknown]",
        "[REDACTED:json-web-token:abcd]",
        "[REDACTED:",
        "[REDACTED]",
        ":password-plain]",
    ]
)
GLUE = st.sampled_from(
    [
        "",
        " ",
        "\n",
        '"',
        "'",
        "\\n",
        "=",
        ": ",
        "password=",
        'token="',
        '\\"secret\\":\\"',
        "é",
        "😀",
        "\ud800",
        "://u:",
        "@",
    ]
)
MIXTURES = st.lists(SECRET_TEXTS | SECRET_VALUES | MARKERS | GLUE | st.text(max_size=8), max_size=14).map("".join)


@given(text=MIXTURES)
@settings(max_examples=times(50, 800))
def test_scrubbing_a_scrubbed_text_changes_nothing(text: str) -> None:
    once = standard().scrub(text)
    assert standard().scrub(once.text) == (once.text, 0, ())


@given(text=MIXTURES)
@settings(max_examples=times(40, 500))
def test_text_that_is_not_redacted_stays_unchanged_and_in_order(text: str) -> None:
    scrubbed = standard().scrub(text)
    at = 0
    for part in MARKER.split(scrubbed.text):
        at = text.find(part, at)
        assert at >= 0
        at += len(part)
    assert (scrubbed.text == text) == (scrubbed.redactions == 0) == (scrubbed.rules == ())


@given(text=st.text(), count=st.integers(1, 5))
def test_each_secret_is_counted_and_replaced_in_place(text: str, count: int) -> None:
    parts = [text.replace("sec", "").replace("name=", "").replace("[", "")] * (count + 1)
    scrubbed = scrubber_with().scrub(" sec12345678 ".join(parts))
    assert scrubbed == (" [REDACTED:simple] ".join(parts), count, ("simple",) * count)


def test_a_text_without_secrets_is_returned_unchanged() -> None:
    text = "nothing to see, in any word of it"
    assert standard().scrub(text).text is text


@pytest.mark.parametrize("secret", ["abcdefghijklmnopqrst", "hunter2x", "éabcdefgh", "pass word", "a_-dEfgh"])
def test_a_redaction_shows_nothing_of_the_secret(secret: str) -> None:
    assert scrubber_with().scrub(f"name={secret.replace(' ', '_')};").text == "name=[REDACTED:loose];"


def test_parts_of_one_secret_that_are_found_in_two_passes_are_both_redacted() -> None:
    first = Rule("first", "", ("aa",), "aa[0-9]{8}")
    second = Rule("second", "", ("bb",), r"\bbb[0-9]{8}")
    assert scrubber_with(first, second).scrub("aa12345678bb12345678").text == "[REDACTED:first][REDACTED:second]"


def test_overlapping_secrets_become_one_redaction_by_the_earlier_rule() -> None:
    inner = Rule("inner", "", ("key",), "key[0-9]+")
    assert scrubber_with(inner, LOOSE).scrub("name=abckey123xyz;").text == "name=[REDACTED:inner];"
    assert scrubber_with(LOOSE, inner).scrub("name=abckey123xyz;").text == "name=[REDACTED:loose];"
    assert scrubber_with().scrub("sec1234name=abcdefgh").redactions == 2
    assert scrubber_with(SIMPLE, Rule("tail", "", ("zz",), "zz+")).scrub("sec1234zzz") == (
        "[REDACTED:simple]",
        1,
        ("simple",),
    )


def test_rules_are_listed_in_order_of_appearance() -> None:
    assert scrubber_with().scrub("name=abcdefgh; sec1234; name=ijklmnop;").rules == ("loose", "simple", "loose")


def test_redactions_are_not_redacted_again() -> None:
    for text in ("name=[REDACTED:simple];", "sec [REDACTED:loose]", "[REDACTED:simple][REDACTED:simple]"):
        assert scrubber_with().scrub(text) == (text, 0, ())


def test_a_text_that_only_looks_like_a_redaction_protects_no_secret() -> None:
    assert scrubber_with().scrub("[REDACTED:simple:sec12345]").text == "[REDACTED:simple:[REDACTED:simple]]"
    assert scrubber_with().scrub("[REDACTED:nosuch:sec12345678]").text == "[REDACTED:nosuch:[REDACTED:simple]]"
    assert scrubber_with().scrub("name=[REDACTED:nosuch];").text == "name=[REDACTED:loose];"
    assert scrubber_with().scrub("name=[REDACTED:simple]hidden42;").text == "name=[REDACTED:loose];"
    assert scrubber_with().scrub("sec[REDACTED:simple]sec12345678").text == "sec[REDACTED:simple][REDACTED:simple]"


def test_redactions_of_a_disabled_rule_are_not_redacted_again() -> None:
    assert scrubber_with(allowlist="rule:simple").scrub("name=[REDACTED:simple]").redactions == 0


def test_a_text_that_reveals_a_secret_at_every_pass_is_redacted_whole() -> None:
    chained = Rule("chained", "", ("kk",), r"\bkk[0-9]{3}")
    few, many = (
        scrubber_with(chained).scrub("kk123" * count)
        for count in (scrubber_module.PASSES - 1, scrubber_module.PASSES + 1)
    )
    assert few.redactions == scrubber_module.PASSES - 1
    assert many == ("[REDACTED:chained]", 1, ("chained",))


def test_half_a_surrogate_pair_is_preserved() -> None:
    assert scrubber_with().scrub("\ud83d sec12345678 \ude00").text == "\ud83d [REDACTED:simple] \ude00"
    assert scrubber_with().scrub("\ud83d\ude00").text == "\ud83d\ude00"
    assert scrubber_with().scrub("name=\ud83dabcdefghi;").text == "name=[REDACTED:loose];"


def test_a_match_that_ends_inside_a_character_redacts_all_of_it() -> None:
    cutting = Rule("cutting", "", ("cut",), r"cut.{3}")
    assert scrubber_with(cutting).scrub("cut😀!").text == "[REDACTED:cutting]!"


COPIED = "Xk9#" + "mQ2vLp7w"


@pytest.mark.parametrize(
    "copy",
    [
        f"try {COPIED} again",
        f"/v1/{COPIED}/items",
        f"before name={COPIED}; and after {COPIED}",
        "Xk9%23" + "mQ2vLp7w",
        base64.b64encode(COPIED.encode()).decode(),
    ],
)
def test_every_copy_of_a_redacted_value_is_redacted(copy: str) -> None:
    scrubbed = scrubber_with().scrub(f"{copy}\nname={COPIED};\n{copy}").text
    assert copy not in scrubbed
    assert COPIED not in scrubbed
    assert COPIED[4:] not in scrubbed


def test_copies_of_a_redacted_plain_word_are_not_redacted() -> None:
    assert (
        scrubber_with().scrub("name=postgres; image: postgres:15").text == "name=[REDACTED:loose]; image: postgres:15"
    )


def test_a_short_value_inside_a_longer_word_is_not_a_copy() -> None:
    assert scrubber_with().scrub("name=ab12cd34; zab12cd34z").text == "name=[REDACTED:loose]; zab12cd34z"


def test_a_rule_may_redact_each_value_of_a_block() -> None:
    block = Rule("block", "", ("all:",), r"all:((?: \w+=\w+)+)", group=1, each=r"=(\w+)")
    assert scrubber_with(block).scrub("all: a=one b=two; c=three").text == (
        "all: a=[REDACTED:block] b=[REDACTED:block]; c=three"
    )


def test_a_rule_that_decodes_redacts_only_encoded_secrets() -> None:
    encoded = Rule("encoded", "", ("=",), r"[A-Za-z0-9+/]{12,}={0,2}", decode=True)
    good, bad = (base64.b64encode(text).decode() for text in (b"see sec12345678 there", b"see nothing at all..."))
    assert scrubber_with(SIMPLE, encoded).scrub(f"x= {good} {bad}").text == f"x= [REDACTED:encoded] {bad}"


def test_a_near_rule_reads_only_a_few_lines_after_its_keyword() -> None:
    near = Rule("near", "", ("word",), r"(?s)word.*?(zz[0-9]+)", group=1, near=True)
    for lines, redactions in ((0, 1), (scrubber_module.NEAR_LINES, 1), (scrubber_module.NEAR_LINES + 1, 0)):
        assert scrubber_with(near).scrub("x\nword " + "\n" * lines + "zz1234\n").redactions == redactions


def test_only_allowed_values_are_not_redacted() -> None:
    scrubber = scrubber_with(allowlist="# ours\nsec1234\n\nre:sec99[0-9]+\n")
    assert scrubber.scrub("sec1234 sec12345 sec9901 sec9902x").text == "sec1234 [REDACTED:simple] sec9901 sec9902x"


def test_an_allowed_pattern_must_match_the_whole_value() -> None:
    assert scrubber_with(allowlist="re:sec99").scrub("sec9901").redactions == 1


def test_a_rule_can_be_disabled() -> None:
    assert scrubber_with(allowlist="rule:loose").scrub("name=abcdefgh; sec1234").rules == ("simple",)


def test_disabling_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(AllowlistInvalid, match="'nosuch', which is no rule"):
        scrubber_with(allowlist="rule:nosuch")


def test_a_scrubber_without_rules_redacts_nothing() -> None:
    assert Scrubber((), Allowlist()).scrub("sec1234").redactions == 0


@pytest.mark.parametrize("value", ["Tr0ub4dor.and3", "correct horse battery", "pä55wört-ünd-mehr"])
def test_a_password_is_found_at_every_depth_of_nested_json(value: str) -> None:
    text: object = {"user": "ann", "password": value, "port": 5432}
    for _ in range(3):
        text = json.dumps(text, ensure_ascii=False)
        scrubbed = standard().scrub(str(text)).text
        assert value not in scrubbed
        assert "ann" in scrubbed
        assert "5432" in scrubbed


def test_a_secret_is_found_at_every_position() -> None:
    known = {secret.kind: secret.value for secret in known_secrets(5)}
    first, second = known["github personal token"], known["stripe live key"]
    for text in (
        first,
        f"{first}.",
        f"x {first}",
        f"{first}{second}",
        f"{first},{second}",
        f"{first}\n{second}",
        f"é{first}é",
        f"😀{first}",
    ):
        scrubbed = standard().scrub(text).text
        assert first[4:] not in scrubbed
        assert second[8:] not in scrubbed


def steps(text: str) -> int:
    """How many steps the interpreter takes to scrub. RE2 takes linear time, and our own loops must too."""
    count = 0

    def trace(_frame: object, _event: str, _argument: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        standard().scrub(text)
    finally:
        sys.settrace(None)
    return count


HOSTILE = [
    '"Secret" "data":{"a":"b"},',
    '"kind":"Secret",{',
    "%6b%65%79%20",
    "x%3A%2F%2Fa%3Ab",
    "token = x || 'default' ",
    "Oi8vOi8vOi8vOi8vOi8v ",
    'password="',
    "token=",
    "password=\"a' password='b\" ",
    "-----BEGIN PRIVATE" + " KEY-----",
    "ey" + "Jaaaaaaaaa.",
    "[REDACTED:json-web-token]",
    "[REDACTED:json-web-token:abcde]",
    "password=Xk9mQ2vLp7w ",
    "kind: Secret\ndata:\n  a: ",
    "secrets:\n  a: Xk9mQ2vLp7wXk9mQ2vLp7w\n",
    "cGFzc3dvcmQ9WGs5bVEydkxwN3c= ",
    "%22password%22%3A",
    '\\\\\\\\\\\\"',
    "AKIA" + "ABCDEFGHIJKLMNOP:",
    "auth=('a', '",
    "<password>",
    "x\n\\n",
    "mysql -p ",
    "http://u:",
    "A_TOKEN=",
    "password=password=secret=token=abcd1234",
    "curl -u \\n%",
    "docker login -p ask-[",
    "password: ",
    "password: |\n  ",
    'password="""',
    "postgres://u:a@b/",
    "pin: 123456 ",
    'password = "' + "a b " * 300,
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_scrubbing_takes_linear_time(unit: str) -> None:
    half, whole = (steps((unit * size)[:size]) for size in (6_000, 12_000))
    assert whole < 2.5 * half + 2_000
