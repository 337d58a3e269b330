"""Whether a loosely described value looks like a secret. Owns what randomness, a placeholder and a name are.

Knows values only, neither the rules that found them nor where they stood.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

from contextfold.scrub.rules import compiled

JUDGED_BYTES = 256  # more of a value would cost time and change no verdict

# What stands in for a secret, whatever the name beside it says. None of these may take a password that begins with a
# sign or a random key that begins with a slash for one.
_PLACEHOLDERS = compiled(
    r"(?i)(?:"
    + "|".join(
        (
            r"(?-i:\$[A-Z_][A-Z0-9_]*)|\$[a-z_]+|\$[{(\[].*",  # $NAME, ${NAME:-default}, $(command)
            r"%[A-Z_][A-Z0-9_]*%|%\([a-z_]\w*\)[sd]|%[sdv]",  # %NAME%, %(name)s
            r".?\{\{?.*\}\}?",  # {name}, {{ name }}, #{name}
            r"<[^<>]*>?|\[[A-Za-z _-]*\]|\([A-Za-z _-]*\)",  # <your token>, [hidden]
            r"(?:arn|vault|ssm|sops|op|env|file|secretsmanager|keyvault|gcpsm|kms|ref)(?:\+\w+)?:[a-z/].*",
            r"[~.]{0,2}/(?:[A-Za-z_.@~-]{1,30}[0-9]{0,4}/)*(?:[A-Za-z_.@~-]{1,30}[0-9]{0,4})?",  # a path
            r"(?-i:[A-Z]{2,20}(?:_[A-Z]{1,20}){2,8})",  # the name of another variable
            r"[a-z][a-z+]{1,15}://[^\s@?]*",  # an address without a query
            r"!?(?:none|null|nil|true|false|undefined|yes|no|on|off|empty|unset|default|example|optional|required|"
            r"string|str|text|varchar|char|bytes|int|integer|number|boolean|object|array|any|unknown|void|hidden|masked|"
            r"redacted|removed|encrypted|sensitive|omitted|placeholder|dummy|sample|foobar|changeme|change[_-]me|todo|tbd|"
            r"replaceme|fixme|n/a|not[ _-]?set|invalid|missing|wrong|expired|valid|values?|confirm(?:ation)?|current|"
            r"incorrect|correct|new|old|reset|forgot|pass|password|passwd|passphrase|secrets?|tokens?|key|api_?key|"
            r"username|user|login|email|name|type|id|label|title|description|input|field|m(?:in|ax)_?length)"
            r"[\]\[)(}{.,;:!?\\/=*]*",
            r"(?:your|my|enter|insert|replace|example|sample|dummy|fake|todo)[ _-]+[a-z][a-z _-]*[>\]})]*",
            r".*(?:x{5,}|\*{3,}|\.{3,}|(?:•){2,}|0{8,}|_{5,}|-{5,}|#{4,}|…).*",
            r"[^A-Za-z0-9\x80-\xff]*",  # punctuation alone
            r"[-+]?[0-9]{1,5}(?:\.[0-9]+)?[a-z]{0,2}[)}\],;]*",  # a small number: a port, a limit
            r".*(?:[-_.]|\b)(?:placeholder|your[-_](?:own|api|secret|token|key|password)[a-z_-]*|goes[-_ ]here)\b.*",
        )
    )
    + ")",
    as_bytes=True,
)

# What people call things by: words of letters, joined or not, with digits only where they are customary. A random value
# of any length holds digits elsewhere, or capitals that begin no word.
_HUMP = r"(?:[A-Z]{1,5}[a-z]{2,20}|Id|To|In|Of|On|By|At|Is|Or|As|Db|Ui|Up|No)"
_CUSTOMARY = (
    r"(?i:oauth2?|base64|b64|sha-?(?:1|256|384|512)|md5|utf-?8|http[23]|ipv[46]|x509|[rhep]s(?:256|512)|argon2i?d?|"
    r"pbkdf2|v[0-9]{1,2})"
)
_WORD = rf"(?:(?:[a-z]{{1,20}}|{_HUMP})(?:{_HUMP})*[A-Z]{{0,4}}|[A-Z]{{1,20}}|{_CUSTOMARY})"
_PART = rf"(?:[$_]*{_WORD}(?:_+{_WORD})*_*|[A-Z][a-z]{{0,2}}[0-9]{{3,5}}(?:{_HUMP})+)"
_MEMBER = r"(?:\.|->|::|\?\.)"
_NAMES = compiled(
    rf"[^\w]?_{{0,2}}{_WORD}(?:[ _./:@-]{{1,2}}(?:{_WORD}|[0-9]))*_?[^\w]{{0,3}}"
    rf"|!*[A-Za-z_$]\w*(?:{_MEMBER}{_PART})+[?!]?(?:[;,)}}\]].*)?"  # settings.password, ed25519.Ed25519PublicKey
    rf"|(?i:[a-z_]\w*(?:{_MEMBER}\w+)*[(\[].*)"  # a call or a subscript: os.environ[
    r"|@[A-Za-z_]\w*(?:[./]\w+)*"  # @decorated, @file
    r"|![01][,;)}].*",  # true or false in minified code
    as_bytes=True,
)


@cache
def _weight(count: int) -> float:
    return count * math.log2(count)


def entropy(value: bytes) -> float:
    """Shannon's entropy of the value's bytes, in bits for each."""
    size = len(value)
    return math.log2(size) - sum(map(_weight, Counter(value).values())) / size


def looks_secret(value: bytes, *, minimum_entropy: float, words: bool) -> bool:
    """Whether the value is random enough, no placeholder, and, unless it may be made of words, no name."""
    judged = value[:JUDGED_BYTES]
    if entropy(judged) < minimum_entropy or _PLACEHOLDERS.fullmatch(judged):
        return False
    return words or not _NAMES.fullmatch(judged)
