"""The canonical JSON encoder and decoder.

Encoding: compact or indented by two spaces, fields in the order given, `\\b \\t \\n \\f \\r \\" \\\\`, other C0
characters as `\\u00xx`, everything else raw. Decoding: strict UTF-8 JSON; repeated keys are reported.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring as quote
from typing import Any

INDENT = "  "
INTEGER_DIGITS = 20
BEYOND_64_BITS = 1 << 64
# Arrays and objects may be nested this deeply. The limit of Python's own parser depends on its version.
DEPTH_MAX = 127
# A complete or truncated string, or a bracket. The quantifiers are possessive, so there is no backtracking.
_STRING_OR_BRACKET = rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]'


class WrittenFloat(float):
    """A number whose class says how many digits are written, like `Float32` of `resolve.selection`."""

    __slots__ = ()


class Hundredths(WrittenFloat):
    """A ratio that is written with two decimals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{self:.2f}"


# The types that the encoder accepts. A plain float is not among them, because its number of digits must be chosen.
Encodable = str | int | WrittenFloat | None | Mapping[str, "Encodable"] | Sequence["Encodable"]
JsonObject = Mapping[str, Encodable]


class Malformed(ValueError):
    """Bytes do not have the expected format; the message says why."""


class RepeatedKeys(dict[str, object]):
    """A JSON object with repeated keys. It has the last value of each."""

    repeated: frozenset[str] = frozenset()


def encode(value: Encodable, *, pretty: bool = False) -> str:
    parts: list[str] = []
    _write(value, parts.append, "\n" if pretty else "")
    return "".join(parts)


def encode_plain(value: Encodable) -> str:
    """The same text as `encode`, by the C encoder of `json`: ten times as fast for large values.

    The value has dictionaries, lists, texts, integers and None. A float must not be in it, because `json` would write
    it with the digits of a plain float.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _write(value: Encodable, put: Callable[[str], None], newline: str) -> None:
    """Write a value. `newline` is empty for compact text, else a line break with the current indentation."""
    if isinstance(value, str):
        put(quote(value))
    elif isinstance(value, bool):
        put("true" if value else "false")
    elif isinstance(value, int | WrittenFloat):
        put(repr(value))
    elif value is None:
        put("null")
    elif isinstance(value, Mapping):
        _write_members(value, put, newline)
    else:
        inner = newline and newline + INDENT
        separator = inner
        put("[")
        for item in value:
            put(separator)
            _write(item, put, inner)
            separator = "," + inner
        put(newline + "]" if value else "]")


def _write_members(members: Mapping[str, Encodable], put: Callable[[str], None], newline: str) -> None:
    inner = newline and newline + INDENT
    colon = ": " if newline else ":"
    separator = inner
    put("{")
    for key, value in members.items():
        put(separator + quote(key) + colon)
        _write(value, put, inner)
        separator = "," + inner
    put(newline + "}" if members else "}")


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - any JSON
    """The value of a JSON text. Raises ValueError if it is not valid, or not UTF-8."""
    return json.loads(text if isinstance(text, str) else text.decode("utf-8"))


def decode(raw: bytes, *, lone_surrogates: bool = False) -> object:
    """Decode JSON. Raises Malformed if the bytes are not valid JSON in UTF-8.

    `lone_surrogates` are escapes of half a surrogate pair. Where they are allowed, the caller checks the texts.
    """
    return _decode(raw, _STRICT_DECODER, lone_surrogates=lone_surrogates)


def decode_stored(raw: bytes) -> object:
    """Decode JSON that this program has written, three times as fast. Repeated keys are not reported."""
    return _decode(raw, _STORED_DECODER)


def _decode(raw: bytes, decoder: json.JSONDecoder, *, lone_surrogates: bool = False) -> object:
    if is_too_deep(raw):
        raise Malformed("is nested too deeply")
    try:
        value: object = decoder.decode(raw.decode("utf-8"))
        if not lone_surrogates and (b"\\ud" in raw or b"\\uD" in raw):
            # Encoding fails for a lone surrogate, which is not valid text.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as problem:
        raise Malformed("is not JSON in UTF-8") from problem
    return value


def is_too_deep(raw: bytes) -> bool:
    """Whether arrays and objects are nested deeper than DEPTH_MAX. For invalid JSON either result is possible."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_MAX:
        return False
    depth = 0
    for token in re.finditer(_STRING_OR_BRACKET, raw):
        match raw[token.start()]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth > DEPTH_MAX:
                    return True
            case 0x5D | 0x7D:  # ] }
                depth -= 1
    return False


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    with_repeated = RepeatedKeys(members)
    with_repeated.repeated = frozenset(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return with_repeated


def _integer(digits: str) -> int:
    """Convert an integer. A longer one becomes a value outside of 64 bits, because converting many digits is slow."""
    return int(digits) if len(digits) <= INTEGER_DIGITS else -BEYOND_64_BITS if digits[0] == "-" else BEYOND_64_BITS


def _reject_constant(name: str) -> object:
    raise Malformed(f"{name} is not JSON")


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_reject_constant, parse_int=_integer)
_STORED_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def fields(value: object, kinds: Mapping[str, type], what: str) -> dict[str, object]:
    """Return the object if it has each member of `kinds` exactly once, with its type. Other members are ignored.

    Raises Malformed otherwise; `what` names the object in the message.
    """
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    if isinstance(value, RepeatedKeys) and (twice := value.repeated & kinds.keys()):
        raise Malformed(f"{what} has {_names(twice)} more than once")
    if missing := kinds.keys() - value.keys():
        raise Malformed(f"{what} lacks {_names(missing)}")
    for name, kind in kinds.items():
        if type(value[name]) is not kind and not (kind is dict and isinstance(value[name], dict)):
            raise Malformed(f"{what} has a {name} that is not {_KIND_NAMES[kind]}")
    return value


_KIND_NAMES = {str: "a string", int: "an integer", list: "an array", dict: "an object"}


def _names(keys: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(keys))
