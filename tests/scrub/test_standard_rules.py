"""The standard rules find the secrets that they describe, and not texts that only resemble them."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.scrub.rules import Allowlist, Rule, parse_rules, read_rules_file
from contextfold.scrub.scrubber import Scrubber, standard_scrubber
from tests.support.known_secrets import KnownSecret, known_secrets
from tests.support.machine import times

RULES = parse_rules(read_rules_file())
# This many consecutive characters of a secret are a leak.
LEAK_CHARS = 6

# The keyword of these rules is outside the match.
KEYWORD_OUTSIDE = {"jwk-private-part"}
# These rules check a structure that random samples do not have.
STRUCTURED = {
    "base64-text",
    "percent-encoded-text",
    "kubernetes-secret",
    "kubernetes-secret-data",
    "secret-block",
    "table-column-token",
    *(f"table-column-password-{column}" for column in range(1, 6)),
}


@cache
def scrubber() -> Scrubber:
    return standard_scrubber()


@cache
def syntax_tree(pattern: str) -> Any:
    flags = re.IGNORECASE if "(?i)" in pattern else 0
    # The standard library's parser has no public name.
    parser = __import__("re._parser", fromlist=["parse"])
    return parser.parse(pattern.replace("(?i)", "").replace("(?m)", ""), flags)


class Sampler:
    """Texts that a pattern matches, drawn at random from its syntax tree."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, pattern: str) -> str:
        return self.sequence(syntax_tree(pattern))

    def sequence(self, tree: object) -> str:
        return "".join(self.piece(str(kind), argument) for kind, argument in tree)  # type: ignore[attr-defined]

    def piece(self, kind: str, argument: object) -> str:  # noqa: PLR0911 - one line for each kind of node
        if kind == "LITERAL":
            return chr(argument)  # type: ignore[arg-type]
        if kind == "NOT_LITERAL":
            return self.random.choice([c for c in "aB3dE5gH7k" if ord(c) != argument])
        if kind == "IN":
            return self.random.choice(members(tuple(argument)))  # type: ignore[arg-type]
        if kind == "BRANCH":
            return self.sequence(self.random.choice(argument[1]))  # type: ignore[index]
        if kind == "SUBPATTERN":
            return self.sequence(argument[-1])  # type: ignore[index]
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            return self.repeated(*argument)  # type: ignore[misc]
        assert kind == "AT", kind
        return ""

    def repeated(self, low: int, high: int, inner: object) -> str:
        return "".join(self.sequence(inner) for _ in range(self.random.randint(low, min(high, low + 12))))


@cache
def members(items: tuple[tuple[object, Any], ...]) -> str:
    """The characters of a class; for a negated class, a few that secrets are made of."""
    chosen = ""
    for kind, argument in items:
        if str(kind) == "NEGATE":
            return "".join(c for c in "aB3dE5gH7kM9pQ2" if re.match(as_class(items), c))
        if str(kind) == "LITERAL":
            chosen += chr(argument)
        elif str(kind) == "RANGE":
            chosen += "".join(map(chr, range(argument[0], min(argument[1], 126) + 1)))
        else:
            chosen += {"CATEGORY_SPACE": " ", "CATEGORY_WORD": "abcdefgh_", "CATEGORY_DIGIT": "0123456789"}[
                str(argument)
            ]
    return chosen


def as_class(items: tuple[tuple[object, Any], ...]) -> str:
    excluded = "".join(re.escape(chr(argument)) for kind, argument in items if str(kind) == "LITERAL")
    return f"[^{excluded}]" if excluded else "."


@cache
def sample(rule: Rule, seed: int) -> str:
    return Sampler(seed).text(rule.pattern)


@cache
def scrubber_of(rule: Rule) -> Scrubber:
    return Scrubber([rule], Allowlist())


def test_every_rule_finds_texts_that_its_pattern_matches() -> None:
    for rule in RULES:
        if rule.id in STRUCTURED:
            continue
        # What follows the head of a cut key is checked for being one.
        is_loose = bool(rule.entropy) or rule.id == "private-key-cut"
        samples = [sample(rule, seed) for seed in range(times(8 if is_loose else 40, 150))]
        line_before = "".join(rule.keywords) if rule.id in KEYWORD_OUTSIDE else "before"
        redactions = [scrubber_of(rule).scrub(f"{line_before}\n{text}\nafter").redactions for text in samples]
        missed = [text for text, found in zip(samples, redactions, strict=True) if not found]
        # Some samples are too regular to look random. Of a documented format every form has a keyword.
        assert len(missed) <= (0.8 * len(samples) if is_loose else 0), (rule.id, missed[0])


def test_a_value_of_one_repeated_letter_is_not_redacted() -> None:
    for rule in RULES:
        for seed in range(times(5, 100) if rule.entropy else 0):
            harmless = with_repeated_letter(scrubber_of(rule), sample(rule, seed))
            assert harmless is None or scrubber_of(rule).scrub(harmless).redactions == 0, (rule.id, harmless)


def with_repeated_letter(rule_scrubber: Scrubber, text: str) -> str | None:
    """Replaces the redacted value by a repeated letter. Returns None if the value cannot be located."""
    scrubbed = rule_scrubber.scrub(text).text
    if "[REDACTED:" not in scrubbed:
        return None
    before, _, rest = scrubbed.partition("[REDACTED:")
    after = rest.partition("]")[2]
    secret = text[len(before) : len(text) - len(after)]
    prefix = re.match(r"(?:[A-Za-z0-9]{1,7}[-_.])*", secret)
    assert prefix
    if 2 * prefix.end() > len(secret):
        # With random pieces between dashes, the end of the prefix cannot be known.
        return None
    return before + prefix[0] + "x" * (len(secret) - prefix.end()) + after


def leaked_pieces(value: str, scrubbed: str) -> list[str]:
    """The pieces of a value in the text that are long enough to be a leak. The names of rules are not counted."""
    text = re.sub(r"\[REDACTED:[a-z0-9-]+\]", "\n", scrubbed)
    return [
        value[at : at + LEAK_CHARS]
        for at in range(max(1, len(value) - LEAK_CHARS + 1))
        if value[at : at + LEAK_CHARS] in text
    ]


@pytest.mark.parametrize("seed", range(times(4, 200)))
def test_every_known_secret_is_redacted(seed: int) -> None:
    for known in known_secrets(seed):
        scrubbed = scrubber().scrub(known.text)
        assert scrubbed.redactions >= 1, known
        assert known.value not in scrubbed.text, known
        assert not leaked_pieces(known.value, scrubbed.text), known


@pytest.mark.parametrize("indent", ["", "\t", "\r\n"])
def test_every_known_secret_is_redacted_inside_a_json_message(indent: str) -> None:
    for known in known_secrets(1):
        message = {"role": "user", "content": [{"type": "text", "text": f"one\n{indent}{known.text}\nend"}]}
        scrubbed = scrubber().scrub(json.dumps(message, ensure_ascii=False)).text
        assert json.dumps(known.value, ensure_ascii=False)[1:-1] not in scrubbed, known
        assert not leaked_pieces(known.value, scrubbed), known
        assert scrubber().scrub(scrubbed).text == scrubbed


KNOWN = st.integers(0, 50).flatmap(lambda seed: st.sampled_from(known_secrets(seed)))


@given(known=KNOWN, before=st.text("ab \n\"'é😀:={", max_size=12), after=st.text("ab \n\"'é😀,;}", max_size=12))
def test_a_secret_is_found_between_any_other_lines(known: KnownSecret, before: str, after: str) -> None:
    text = f"{before}\n{known.text}\n{after}"
    assert known.value not in scrubber().scrub(text).text


@pytest.mark.parametrize(
    "text",
    [
        "token: str",
        'password=os.environ["X"]',
        "secret_name = app",
        "PASSWORD=${PASSWORD}",
        "TOKEN=<your-token>",
        "API_KEY=xxxxxxxxxxxxxxxx",
        "password: [REDACTED]",
        "def login(user: str, password: str) -> None:",
        "password = getpass.getpass()",
        "commit 0f3c9d1e5b7a2468ace013579bdf02468ace1357",
        "id 123e4567-e89b-12d3-a456-426614174000",
        "/etc/ssl/private/server.pem",
        "max_tokens=4096",
        "the token expired and the password is required",
        "key=lambda item: item.name, secret=settings.secret_key",
        "https://example.com:8080/a/b?page=2&sort=key",
        "git@github.com:team/app.git",
        "Basic authentication is deprecated",
        "risk-assessment-of-the-whole-project-in-detail",
        '{"type": "password", "name": "password", "required": true}',
        "sha256:" + "0123456789abcdef" * 4,
        "client_secret: process.env.CLIENT_SECRET,",
        '{"session_id": "sess_4b25cb7b5fa8ae3f", "active_branch_id": "br_4b25cb7b5fa8ae3f"}',
        '<input type="password" name="password" autocomplete="current-password">',
    ],
)
def test_ordinary_text_is_not_redacted(text: str) -> None:
    assert scrubber().scrub(text) == (text, 0, ())


@pytest.mark.parametrize(
    "value",
    [
        "@dmin2024x",
        "$ecret123",
        "/slash4All",
        "Abc(1xyz9",
        "P4ss[word]9",
        "in.the.dark7",
        "{half9",
        "my1horse",
        "x" * 4 + "9Yz",
    ],
)
def test_a_quoted_password_that_looks_like_code_is_redacted(value: str) -> None:
    assert value[4:] not in scrubber().scrub(f'{{"user": "ann", "password": "{value}"}}').text


@pytest.mark.parametrize(
    ("prefix", "alphabet", "length"),
    [
        ("AK" + "IA", "ABCDEFGH2345", 12),
        ("gh" + "p_", "abcdEFGH1234", 20),
        ("gl" + "pat-", "abcdEFGH1234", 10),
        ("sk" + "_live_", "abcdEFGH1234", 8),
        ("np" + "m_", "abcdEFGH1234", 20),
        ("AI" + "za", "abcdEFGH1234", 20),
        ("hv" + "s.", "abcdEFGH1234", 10),
        ("ey" + "J", "abcdEFGH1234", 40),
    ],
)
def test_a_key_that_is_much_too_short_is_not_redacted(prefix: str, alphabet: str, length: int) -> None:
    rng = random.Random(7)
    text = "see " + prefix + "".join(rng.choice(alphabet) for _ in range(length)) + " there"
    assert scrubber().scrub(text).redactions == 0


VALUE = "Xk9#" + "mQ2vLp7w"
GITHUB = "gh" + "p_" + "aB3dE5gH7kM9pQ2rT4vX6zA8cF0jL1nS5uW7"
OURS = "ct" + "x_" + "q7Zp-Lk2Vw_Rt9Xc4Bn8Ms1Df6Gh3Jy5Ua0Ie-To_Pz"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"curl -d {OURS} http://localhost", OURS),
        (OURS.replace("_", "%5F", 1), OURS[4:]),
        (f'password = """{VALUE}"""', VALUE),
        (f"password = '''{VALUE}'''", VALUE),
        (f'password = """\n{VALUE}\n"""', VALUE),
        (f'{{"src": "password = \\"\\"\\"{VALUE}\\"\\"\\""}}', VALUE),
        (f'api_key = """{VALUE}"""', VALUE),
        (f"password: |\n  {VALUE}\nuser: a", VALUE),
        (f"password: >-\r\n  {VALUE}\r\n", VALUE),
        (f'{{"yaml": "password: |\\n  {VALUE}\\nuser: a"}}', VALUE),
        (f"password:\n  {VALUE}", VALUE),
        (f'password = (\n    "{VALUE}"\n)', VALUE),
        (f"aws_secret_access_key =\n  {GITHUB[4:]}abcd\n", GITHUB[4:]),
        (f"Authorization: Bearer\n {GITHUB[4:]}\n", GITHUB[4:]),
        (f"Pass: {VALUE}", VALUE),
        (f"contraseña: {VALUE}", VALUE),
        (f"mot de passe : {VALUE}", VALUE),
        (f"密码: {VALUE}", VALUE),
        (f"口令：{VALUE}", VALUE),
        (f"パスワード={VALUE}", VALUE),
        (f"пароль: {VALUE}", VALUE),
        ("postgres://u:p@ss/w0rd9X@h/db", "ss/w0rd9X"),
        ("jdbc:oracle:thin:scott/Xk9mQ2vL@h", "9mQ2vL"),
        (f"$ sqlplus -s scott/{VALUE}@orcl", VALUE),
        (f'psk="{VALUE}"', VALUE),
        (f"[wifi-security]\npsk={VALUE}\n", VALUE),
        (f'ssh-keygen -t ed25519 -N "{VALUE}" -f k', VALUE),
        (f"zip -P {VALUE} a.zip b", VALUE),
        ("pin: 123456", "3456"),
        ("otp=839201", "9201"),
        ('{"mfa_code": "839201"}', "9201"),
        (GITHUB.replace("_", "\\u005f"), GITHUB[4:]),
        (GITHUB.replace("_", "%5F"), GITHUB[4:]),
        (f"{GITHUB[:20]}\n{GITHUB[20:]}", GITHUB[20:]),
        (f"{GITHUB[:9]}\x1b[31m{GITHUB[9:]}\x1b[0m", GITHUB[9:]),
    ],
)
def test_a_secret_in_an_unusual_notation_is_redacted(text: str, secret: str) -> None:
    scrubbed = scrubber().scrub(text)
    assert scrubbed.redactions == 1
    assert secret not in scrubbed.text
    assert secret[-4:] not in scrubbed.text


@pytest.mark.parametrize(
    "text",
    [
        "ctx_manager_for_the_current_session_of_the_running_server",
        OURS[:30],
        'password = ""\nif x:\n    """A docstring."""',
        'password = "" if len(x) > 9 else name',
        "password: |\n  type: string\n",
        "password:\n  minLength: 12\n",
        "token:\n  secretName: app-tls\n",
        "if not token:\n    count9+=1\n",
        "if secret:\n    self.x3=Token99\n",
        "password:\nXk9-not-indented",
        "Authorization: Bearer\n  Accept: text/html\n",
        "--- PASS: TestBase64Encode2 (0.00s)",
        "Pass: all tests of it",
        "pass=12 fail=0",
        "密码：请输入密码",
        "contraseña: obligatoria",
        "mot de passe : requis",
        "пароль: нужен",
        "http://localhost:4873/@babel/core",
        "postgres://localhost:5432/db?mail=a@b.example",
        "ssh://git@example.com/a/b",
        "jdbc:oracle:thin:@db:1521:x",
        "psk: Optional[str] = None",
        "key_mgmt=WPA-PSK",
        "ssh-keygen -t rsa -f key",
        "zip -r out.zip docs",
        "GPIO pin: 13",
        "status code: 404404",
        "otp=$OTP",
        "ghp_short\nnextlineofthetext",
    ],
)
def test_texts_that_resemble_an_unusual_notation_are_not_redacted(text: str) -> None:
    assert scrubber().scrub(text) == (text, 0, ())


PROSE = "The fold keeps what the branch found and drops how it was found. "
BEGIN, END = ("-" * 5 + f"{word} PRIVATE" + " KEY" + "-" * 5 for word in ("BEGIN", "END"))


def test_prose_between_the_markers_of_a_private_key_is_not_redacted() -> None:
    scrubbed = scrubber().scrub(f"{BEGIN}\n{PROSE * 2_000}\n{END}").text
    assert scrubbed.count("drops how it was found") == 2_000
    assert scrubber().scrub(scrubbed).redactions == 0


def test_a_private_key_is_redacted_with_its_headers_and_a_comment() -> None:
    body = "\n".join((GITHUB[4:] + GITHUB[4:32]) for _ in range(60))
    comment = "Comment: made for the deployment of the service by its own build\nProc-Type: 4,ENCRYPTED\n\n"
    assert scrubber().scrub(f"{BEGIN}\n{comment}{body}\n{END}").text == "[REDACTED:private-key]"


@pytest.mark.parametrize("gap", [" ", "\\n"])
def test_an_unclosed_quote_redacts_a_bounded_part(gap: str) -> None:
    text = f'password = "{VALUE}{gap}' + (PROSE * 4_000).replace(" ", gap)
    scrubbed = scrubber().scrub(text).text
    assert VALUE[4:] not in scrubbed
    assert len(text) - len(scrubbed) < 2_500
    assert scrubber().scrub(scrubbed).redactions == 0


def test_a_long_value_without_spaces_is_redacted_whole() -> None:
    assert scrubber().scrub(f'password = "{GITHUB[4:] * 400}"').text == 'password = "[REDACTED:password-quoted]"'
