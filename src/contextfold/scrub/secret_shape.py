"""Decides whether a value looks like a secret. Owns the tests for randomness, placeholders, prose and identifiers.

It sees a value and, where there is one, the name that the value is assigned to. It knows no rule and no text around it.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache, lru_cache

from contextfold.scrub.rules import ValueShape, compile_bytes

# More bytes of a value would cost time and change no decision.
JUDGED_BYTES = 256
# A value under a name such as `token_type` must be at least this long to be a secret.
RANDOM_BYTES = 16
# Shorter values, and values that are ordinary words, are common in any text: their copies are left alone.
COPY_BYTES = 6
IDENTIFIER_COPY_BYTES = 8
COPY_ENTROPY = 2.3
# The end of a name decides what it is. The decisions about the latest names are remembered, as texts repeat them.
NAME_BYTES, REMEMBERED_NAMES = 40, 1_000

_PLACEHOLDERS = compile_bytes(
    r"(?is)(?:"
    + "|".join(
        (
            # $NAME, ${NAME}, $(command). A value with a default has a rule of its own.
            r"(?-i:\$[A-Z_][A-Z0-9_]*)|\$[a-z_]+|\x60?\$\{{1,2}[^{}]*\}{0,2}(?:\x60[\s,;)}\]]*)?|\$\([^()]*\)?|\$\(\(.*|\$\[[^\[\]]*\]?|\$env:\w+",
            # %NAME%, %(name)s, %s
            r"%[A-Z_][A-Z0-9_]*%|%\([a-z_]\w*\)[sd]|%[sdv]",
            # A placeholder in braces, single around a name and double around anything.
            r"(?:bearer )?\$?\{\{[^{}]*\}\}|\$?\{\{?[-A-Za-z_.$%]*\(?|\{[0-9]{0,2}\}|\{%.*|"
            r"[#$%@!]?\{@?[A-Za-z_][A-Za-z_.:!|-]*\}",
            # <your token>, [hidden], (none), and other markup
            r"<[^<>]*>?|\[[A-Za-z _-]*\]|\([A-Za-z _-]*\)|<%.*%>|"
            r"</[a-z].*|[a-z]*[0-9]{0,2}&(?:nbsp|[lr][sd]quo|[mn]dash|hellip).*|\[REDACTED\].*",
            # Words to choose from, a type with its size, the name of a cipher suite.
            r"[a-z_]{2,20}(?:\|[a-z_]{2,20})+|[*&]?(?:u?int(?:8|16|32|64|ptr)|float(?:32|64))",
            # An option of a command, the end of an optional one in a synopsis, a digest.
            r"--[a-z][a-z-]+|[a-z]+_[a-z_]+\]|sha(?:1|256|384|512)[:=][0-9a-f.<>]*",
            r"(?-i:(?:[A-Z]{2,5}-)?PSK-[A-Z0-9-]{4,40}|cipher_[A-Z0-9_a-z]{4,60})",
            # References to a secret store.
            r"(?:arn|vault|ssm|sops|op|env|file|secretsmanager|keyvault|gcpsm|kms|ref)(?:\+\w+)?:[a-z/].*",
            # A path.
            r"[~.]{0,2}/(?:[A-Za-z_.@~-]{1,30}[0-9]{0,4}/)*(?:[A-Za-z_.@~-]{1,30}[0-9]{0,4})?",
            r"(?:[A-Za-z_.-]{1,30}/){1,6}[A-Za-z_.-]{0,30}\.[a-z]{2,4}",
            r"[~.]{0,2}(?-i:/[a-z_.-]{1,60}(?:[0-9]{1,5}[a-z_.-]{0,60}){0,2})+(?:[?#][a-z_=#-]*)?",
            # The name of another variable.
            r"(?-i:(?:[A-Z]{2,20}[-_]){1,6}(?:PASSWORD|TOKEN|KEY|SECRET|NAME)|FILENAME)|"
            r"(?-i:[A-Z][A-Z0-9]{1,20}(?:_[A-Z0-9]{1,20}){2,8})",
            # A host with a port, and an address without a query, or with one of words.
            r"(?:localhost|[a-z0-9-]+(?:\.[a-z][a-z0-9-]*)+):[0-9]{2,5}/?|"
            r"[a-z][a-z+]{1,15}://[^\s@?]*(?:\?[a-z_]{1,20}=[a-z_-]{1,20})?",
            # The path of a value in an object: *.*.password, users[1].password
            r"(?:[a-z_]*(?:\*|\[[0-9*]{1,4}\])?\.)+[a-z_]+",
            r"!?(?:none|null|nil|true|false|undefined|yes|no|on|off|empty|unset|default|example|optional|required|"
            r"string|str|text|varchar|char|bytes|int|integer|number|boolean|object|array|any|unknown|void|hidden|masked|"
            r"redacted|removed|encrypted|sensitive|omitted|placeholder|dummy|sample|foo|bar|baz|foobar|abc|xyz|asdfg?|qwer|changeme|change[_-]me|todo|tbd|"
            r"replaceme|fixme|n/a|not[ _-]?set|invalid|missing|wrong|expired|valid|values?|confirm(?:ation)?|current|"
            r"incorrect|correct|new|old|reset|forgot|pass|password|passwd|passphrase|secrets?|tokens?|key|api_?key|"
            r"username|user|login|email|name|type|id|label|title|description|input|field|m(?:in|ax)_?length|"
            r"bearer|basic|jwt|oauth|oauth2|refresh|access|session|plain|prompt|ask|stdin|manual|auto|never|always|options?|arguments?|parameters?|flags?|and|or|is|are|from)"
            r"[\]\[)(}{.,;:!?\\/=*]*",
            r"(?:your|my|enter|insert|replace|example|sample|dummy|fake|todo|some|the)[ _-]+[a-z][a-z _-]*[>\]})]*",
            r".*(?:x{5,}|\*{3,}|\.{3,}|(?:•){2,}|0{8,}|_{5,}|-{5,}|#{4,}|…).*",
            # A string with a variable in it: secret${index}
            r"[\w./: -]*\$\{[\w.$\[\]()+ ]+\}.*",
            r"(?:[\w.:/@ -]*\{[a-z_][a-z_.]*\})+[\w.:/@ -]*",
            # A regular expression or a format.
            r".*(?:\(\?[:=!<P]|\[\^?%s|%s[)|\]]|\[a-z]-|\[[^\s\]]{0,20}(?:a-z|0-9)|\[\^).*",
            # The text between two strings: 'password=' + value + ', port='
            r"[,;)\]}+][\s)].*|[,)]\s*\w.*|\+[a-z_][a-z_.]*\).*",
            # The ids of our own sessions and branches, which our tools answer and which open nothing.
            r"(?-i:(?:sess|br)_[0-9a-f]{16})",
            # A public key.
            r"(?-i:MFkw|MIIBIj|MIICIj|MIGfMA|MCowBQ|MHYwEA|AAAA[BC]3NzaC1|AAAAE2VjZHNh).*",
            # Punctuation alone.
            r"[^A-Za-z0-9\x80-\xff]*",
            # A number of a program, a colour, a format.
            r"0x[0-9a-f]{1,16}[ul]{0,3}[,;)]*|(?:[a-z-]+: ?)?#[0-9a-f]{3,8};?|(?:%[sd][:@/ -]?)+",
            r"[~^>=v]*[0-9]+(?:\.[0-9]+)+(?:-[a-z]+[.0-9]*)?",
            r"[\w:./@-]*(?-i:\$[A-Z_]{3,})|[\w=\"'./: -]*\{[a-z_]+(?:\.[a-z_]+)+\}.*",
            r"(?-i:[a-z]{2,20}(?:Password|Passwd|Token|Secret|Key))",
            # The name of another value: delete_branch_password
            r"(?-i:[a-z]{2,20}(?:_[a-z]{2,20}){0,4}_(?:password|passwd|token|secret|key|credentials?)(?:_[a-z]{2,20}){0,4})",
            # The tag of a field of a Go struct: json:"keys,omitempty"
            r"[a-z_]{2,20}:\\?\"[\w,.=; -]*(?:\\?\"(?: [a-z_]{2,20}:.*)?)?",
            # A format with something else behind its value: %s&zip=1
            r"(?:[^%]*[=/:])?%[sdvq][&/\"' ].*|[\w.-]{1,40}=%[sdvrq]|(?:[a-z_]+\.|%[sdvq]\.?)+[a-z_]*",
            # A number: a small one, the limit of an integer, one with a fraction or an exponent.
            r"[-+]?[0-9]{1,5}(?:\.[0-9]+)?[a-z]{0,2}[)}\],;]*|-?(?:9223372036854775|18446744073709551)[0-9]{3}|"
            r"[-+]?[0-9]*\.[0-9]+(?:e[-+]?[0-9]+)?|[-+]?[0-9]+e[-+]?[0-9]+",
            r".*(?:[-_.]|\b)(?:placeholder|your[-_](?:own|api|secret|token|key|password)[a-z_-]*|goes[-_ ]here)\b.*",
        )
    )
    + ")",
)

# Sentences and labels: several words, one of which only ever joins other words. A passphrase seldom has one.
_PROSE = compile_bytes(
    r"(?is)(?:[^\s0-9]+\s+(?:[^\s]+\s+)*)?(?:an?|the|is|are|was|to|of|for|in|on|or|and|not|no|your|you|must|please|enter|with|from|has|"
    r"have|this|that|be|by|as|at|it|if|can|cannot|should|will|do|does|when|than|least|use|set|get|new|all|only|"
    r"de|la|le|les|el|los|las|un|une|il|per|di|da|del|der|die|das|ein|eine|ist|und|zu|het|een|och|att|för|som|er|med|"
    r"til|og|av|på|para|por|con|que|não|pas|est)\s.*",
)

# Words of letters, joined or not. Digits occur only where they are customary in names. A random value of any length has
# digits elsewhere, or capitals that begin no word.
_HUMP = (
    r"(?:[A-Z]{1,12}[a-z]{2,20}|(?:RSA|ECDSA|ECDSAP|P|MlKem|MlDsa)(?:224|256|384|512|521|768|1024|2048|4096)|[EX]d?25519|PKCS(?:1|7|8|12)|SHA(?:1|224|256|384|512)|MD5|AES(?:128|256)|X509|S3|EC2|OAuth2|HTTP2|"
    r"IPv[46]|UTF8|Base64|I18n|L10n|A11y|V[0-9]|[A-Z]{0,6}(?:Id|To|In|Of|On|By|At|Is|Or|As|Db|Ui|Up|No|De|Ex|Fn|Fi|Do|My|Ok|Ip|Io|Os|Fs|Js|Ts|Tx|Rx|Kx|Re|Un|"
    r"If|We|Me|Go|Py))"
)
_CUSTOMARY = (
    r"(?i:oauth2?|base64|b64|sha-?(?:1|256|384|512)|md5|utf-?8|http[23]|ipv[46]|x509|pkcs(?:[1578]|12)|(?:x|ed|curve)(?:25519|448)(?:ph)?|x?chacha20(?:poly1305)?|[rhep]s(?:256|512)|argon2i?d?|"
    r"pbkdf2|v[0-9]{1,2})"
)
_WORD = rf"(?:(?:[a-z]{{1,30}}|{_HUMP})(?:{_HUMP})*[A-Z]{{0,5}}|[A-Z]{{1,30}}|{_CUSTOMARY}(?:{_HUMP})*)"
_PART = rf"(?:[$_]*{_WORD}(?:_+{_WORD})*_*|[A-Z][a-z]{{0,2}}[0-9]{{3,5}}(?:{_HUMP})+)"
_BETWEEN_WORDS = r"(?:[ _./:@=*-]{1,3}|%[2-7][0-9A-F]|\xe2\x80[\x93\x94])"
_MEMBER = r"(?:\.|->|::|\?\.)"
_NAMES = compile_bytes(
    # Words with or without something between them.
    rf"(?s)[^\w]?_{{0,3}}{_WORD}(?:{_BETWEEN_WORDS}(?:{_WORD}|[0-9]))*_{{0,3}}[^\w]{{0,4}}"
    # Words of other scripts.
    r"|[^0-9]*[\x80-\xff]{6,}[^0-9]*"
    # settings.password, ed25519.Ed25519PublicKey
    rf"|[!*&]*[A-Za-z_$]\w*(?:{_MEMBER}{_PART})+[?!]?(?:[;,)}}\]].*)?"
    # @decorated, @file
    r"|@[A-Za-z_]\w*(?:[./]\w+)*",
)

# Expressions, which can only be code where the value has no quotes.
_CODE = compile_bytes(
    # A call or a subscript whose name has no digits, or that ends as code does: os.environ[, load2(path)
    rf"(?s)[$@&*!(]{{0,3}}[A-Za-z_$]+(?:{_MEMBER}[A-Za-z_$]+)*(?:<[\w, ]*>)?!?[(\[].*"
    rf"|[$@&*!(]{{0,3}}[A-Za-z_]\w*(?:{_MEMBER}\w+)*(?:<[\w, ]*>)?!?[(\[](?:.*[^A-Za-z0-9])?"
    r"|!\(.*|/\^.*|\$[\w:]+->.*|(?:self|this)\..*"
    # Go: a type assertion, a conversion to a slice, a composite literal.
    r"|[A-Za-z_]\w*(?:\.\w+)*\.\([\w*.\[\]]+\).*|(?:\[\])+[\w.*]+[({].*|&?[A-Za-z_.]+\{(?:\}|[A-Z]\w*:|[a-z]\w*[.}]|$).*"
    # A call of a method whose name begins with a capital, as in Go and C#.
    r"|[A-Za-z_]\w*\.[A-Z][A-Za-z0-9]{3,40}\(.*"
    # Identifiers with digits that no password has.
    rf"|[A-Z]{{2,20}}[0-9]{{1,4}}(?:{_HUMP})+[0-9]{{0,3}}[^\w]*|(?:[A-Z][a-z]{{0,2}}[0-9]{{3,5}}|[A-Z][a-z]{{1,2}}[0-9])(?:{_HUMP})+[^\w]*"
    r"|[a-z]+[0-9]{0,2}(?:_[a-z]+[0-9]{0,2}){2,}[^\w]*|Uint(?:8|16|32)\w*.*"
    r"|[A-Za-z_]\w*(?:,[0-9]+L?)+|\w{1,3}[},]+\w*[:=.}].*|(?:null|true|false|undefined)[,;)}\]].*"
    # Style sheets.
    r"|.*\{[a-z-]+:.*|(?:before|after|hover|active|focus|not|first|last|nth|checked|disabled|root)[^\w].*"
    # A generated identifier.
    r"|[A-Za-z_$][\w$]*\$[0-9]+(?:[.(,;].*)?|[A-Za-z_]+\$[A-Za-z_]+\.[a-z]+[,;)].*"
    # True or false in minified code, and other expressions.
    r"|![01][,;)}].*|[\w.$]+\?[\w.$]+[.(:].*|[\w.$]+[<>]=?[\w.$]+\?.*|.*(?:\}\)|\)\.|\}\}(?:[a-z]|[;,].)|\(\)|\(\(|\)\{|=>|&&|\|\|).*",
)

# As above, but a few digits may end any word of three letters: an identifier of a program, never a long random value.
_DIGIT_WORD = (
    rf"(?:{_WORD}|(?:[A-Za-z]?[a-z]{{2,20}}|{_HUMP})(?:{_HUMP})*[0-9]{{1,5}}(?:(?:{_HUMP})+[0-9]{{0,5}})?"
    rf"|[A-Z]{{1,20}}[0-9]{{1,5}}(?:V[0-9]{{1,2}})?(?:{_HUMP})*[A-Z]{{0,10}}|[a-z]{{1,20}}[0-9]{{1,3}}[a-z]{{0,20}}"
    r"|[a-z]{1,10}[0-9]{1,3}v[0-9]|[A-Z][a-z]|[0-9]{1,4}[a-z]?)"
)
_IDENTIFIERS = compile_bytes(
    rf"(?s)[^\w]{{0,2}}_{{0,3}}{_DIGIT_WORD}(?:(?:[ _./:@#+=*-]|->|::|\?\.){{1,2}}{_DIGIT_WORD})*_{{0,3}}"
    r"[^\w!#$%&*]{0,3}"
    # The fingerprint of a key.
    r"|[0-9A-F]{40}",
)

# The last word of a name that describes a secret and does not contain one: token_type, passwordField, secret.name
_DESCRIBING = compile_bytes(
    r"(?i)(?:name|names|type|types|kind|file|filename|path|dir|url|uri|urls|endpoint|host|field|fields|label|length|len|"
    r"size|count|counts|limit|expiry|expires|expiration|expired|ttl|lifetime|timeout|age|regex|regexp|re|pattern|format|"
    r"policy|prompt|message|msg|error|errors|class|classes|prefix|suffix|header|headers|param|params|parameter|index|idx|"
    r"algorithm|algo|method|mode|func|function|handler|callback|provider|manager|service|store|storage|cache|list|set|"
    r"map|table|column|schema|text|title|description|desc|help|usage|docs?|doc|link|placeholder|button|input|form|view|"
    r"page|screen|icon|color|style|width|height|position|pos|start|end|line|loc|location|range|offset|state|status|"
    r"required|enabled|disabled|visible|valid|invalid|exists|present|changed|updated|created|at|by|from|to|for|in|of|"
    r"is|has|usage|usages|use|uses|scope|scopes|issuer|audience|version|strength|rules?|check|checks|test|tests|"
    r"spec|example|examples|generator|factory|builder|parser|reader|writer|stream|source|ref|reference|arn|alias|"
    r"model|names?pace|group|role|owner|user|users|username|email|account|domain|region|bucket|feature|option|options|"
    r"settings?|config|configuration|property|properties|attribute|attr|element|node|selector|event|action|command|"
    r"separator|delimiter|char|character|characters|encoding|charset|locale|language|lang|template|reset|recovery|"
    r"confirmation|change|rotation|management|auth|authentication|login|required|optional|default|budget|budgets|"
    r"per|total|max|min|used|limits?|ratio|rate|price|cost|stats|metrics|details|info|meta|metadata|data|digest|"
    r"fingerprint|checksum|public|pub|identifier|ids?|hint|question|answer|order|sort|code|codes|exception|warning|"
    r"notice|log|int|float|imag|literal|event|events|request|response|result|results|object|instance|entry|entries|item|items|pair|pairs|"
    r"exchange|grant|flow|grants|uri|bits|bytes|check|derivation|agreement|schedule|ring|board|word|words|press|down|up|"
    r"encode|decode|split|replace|strip|join|startswith|endswith|match|includes|append|add|remove|lower|upper|trim|parts|"
    r"hash|scheme|close|open|dynamic|storage|builtin|enum|global|time|date|timestamp|through|fail|depth|mgr|realm|processor|variants?|terminator|compound|stack|buffer|matcher|lexer|identity|bundle|pool|queue|topic|interval|"
    r"window|delta|span|seconds|minutes|hours|days)",
)
_LAST_WORD = compile_bytes(r"(?:[_.:-]|[a-z0-9])([A-Z]?[a-z]{1,15}|[A-Z]{1,15})[0-9]{0,2}$")
# Names in which such a word does not describe: the `id` of a secret id is as good as the secret.
_SECRET_ALL_THE_SAME = (b"secret_id", b"secretid", b"secret-id")


@cache
def _weight(count: int) -> float:
    return count * math.log2(count)


def entropy(value: bytes) -> float:
    """Shannon's entropy of the value's bytes, in bits for each."""
    size = len(value)
    return math.log2(size) - sum(map(_weight, Counter(value).values())) / size


def looks_secret(value: bytes, *, minimum_entropy: float, shape: ValueShape, name: bytes = b"") -> bool:
    """Whether the value is random enough, no placeholder or prose, and of the shape that its rule asks for."""
    judged = value[:JUDGED_BYTES]
    if entropy(judged) < minimum_entropy or _PLACEHOLDERS.fullmatch(judged):
        return False
    if b" " in judged and _PROSE.fullmatch(judged):
        return False
    if name and describes_a_secret(name[-NAME_BYTES:]):
        shape = "random"
        if len(judged) < RANDOM_BYTES:
            return False
    if shape == "any":
        return True
    if _NAMES.fullmatch(judged) or (shape != "no-word" and _CODE.fullmatch(judged)):
        return False
    return shape != "random" or not _IDENTIFIERS.fullmatch(judged)


@lru_cache(REMEMBERED_NAMES)
def describes_a_secret(name: bytes) -> bool:
    """Whether a name such as `token_type` says something about a secret rather than being one."""
    last = _LAST_WORD.search(name)
    if last is None or not _DESCRIBING.fullmatch(last.group(1)):
        return False
    return not name.lower().endswith(_SECRET_ALL_THE_SAME)


def copies_are_secret(value: bytes) -> bool:
    """Whether a value that was redacted once is distinctive enough to be redacted wherever else it occurs."""
    if len(value) < COPY_BYTES or entropy(value[:JUDGED_BYTES]) < COPY_ENTROPY:
        return False
    judged = value[:JUDGED_BYTES]
    if len(value) < IDENTIFIER_COPY_BYTES and _IDENTIFIERS.fullmatch(judged):
        return False
    return not any(pattern.fullmatch(judged) for pattern in (_NAMES, _PLACEHOLDERS, _CODE))
