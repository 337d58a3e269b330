"""The canonical JSON encoder and decoder, and the hash that is the version of a content.

Encoding: compact or indented by two spaces, fields in the order given, `\\b \\t \\n \\f \\r \\" \\\\`, other C0
characters as `\\u00xx`, everything else raw. Decoding: strict UTF-8 JSON; repeated keys are reported.
"""

from __future__ import annotations

import sys

# Commands that only write JSON start without what reads it. `collections.abc` is another name of `_collections_abc`,
# which every interpreter has loaded.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from json.encoder import encode_basestring as quote
    from typing import Any

    Scan = Callable[[str, int], tuple[Any, int]]
    # None in an interpreter without the C module.
    c_make_encoder: Callable[..., Callable[[object, int], Sequence[str]]] | None
else:
    from _collections_abc import Mapping, Sequence

    try:
        from _json import encode_basestring as quote
        from _json import make_encoder as c_make_encoder
    except ImportError:
        from json.encoder import c_make_encoder
        from json.encoder import encode_basestring as quote

HASH_PREFIX = "sha256:"
INDENT = "  "
INTEGER_DIGITS = 20
BEYOND_64_BITS = 1 << 64
JSON_SPACE = " \t\n\r"
# With so few brackets, a text cannot be nested too deeply.
BRACKETS_SHALLOW = 64
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class WrittenFloat(float):
    """A number whose class says how many digits are written, like `float32.Float32`."""

    __slots__ = ()


class Hundredths(WrittenFloat):
    """A ratio that is written with two decimals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{self:.2f}"


# The types that the encoder accepts. A plain float is not among them, because its number of digits must be chosen.
Encodable = str | int | WrittenFloat | None | Mapping[str, "Encodable"] | Sequence["Encodable"]


# A tuple is faster to test than a union, which would be made for each value.
_NUMBERS = (int, WrittenFloat)
# Whether a value is a Mapping takes longer to find out than all else, so the usual lists are recognised first.
_LISTS = (list, tuple)


class Malformed(ValueError):
    """Bytes do not have the expected format; the message says why."""


class RepeatedKeys(dict[str, object]):
    """A JSON object with repeated keys. It has the last value of each."""

    repeated: frozenset[str] = frozenset()


def version_of(content: bytes) -> str:
    """The version of a content: `sha256:` and its hash."""
    import hashlib

    return HASH_PREFIX + hashlib.sha256(content).hexdigest()


def encode(value: Encodable, *, pretty: bool = False) -> str:
    parts: list[str] = []
    _write(value, parts.append, "\n" if pretty else "")
    return "".join(parts)


def encode_plain(value: Encodable) -> str:
    """The same text as `encode`, faster, for a value of dictionaries, lists, texts, integers and None.

    A float of any kind must not be in it: it would be written with the digits of a plain float.
    """
    if c_make_encoder is None:
        return encode(value)
    return "".join(c_make_encoder(None, _refuse, quote, None, ":", ",", False, False, False)(value, 0))


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not among the types that encode_plain accepts")


def _write(value: Encodable, put: Callable[[str], None], newline: str) -> None:
    """Write a value. `newline` is empty for compact text, else a line break with the current indentation."""
    if isinstance(value, str):
        put(quote(value))
    elif isinstance(value, bool):
        put("true" if value else "false")
    elif isinstance(value, _NUMBERS):
        put(repr(value))
    elif value is None:
        put("null")
    elif isinstance(value, dict) or (not isinstance(value, _LISTS) and isinstance(value, Mapping)):
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


class _ScannerOptions:
    """How the interpreter's scanner of JSON makes values. Its names are those of `json.JSONDecoder`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    def __init__(self, **others: object) -> None:
        vars(self).update(others)


# The scanners by the function that uses them. They are made at their first use.
_scanners: dict[str, Scan] = {}


def _scanner(user: str, **options: object) -> Scan:
    if user not in _scanners:
        _scanners[user] = _make_scanner(_ScannerOptions(**options))
    return _scanners[user]


def _make_scanner(options: _ScannerOptions) -> Scan:
    """The scanner that `json` uses. Importing `json` itself takes longer than scanning most texts."""
    scan: Scan
    try:
        from _json import make_scanner
    except ImportError:
        make_scanner = None  # type: ignore[assignment, misc]  # Another interpreter than CPython.
    if make_scanner is None or hasattr(sys, "gettotalrefcount"):
        # A debug build ends the process where the scanner would report an error with a class of `json`.
        from json import JSONDecoder

        scan = JSONDecoder(**vars(options)).scan_once  # type: ignore[attr-defined]  # Not in the type stubs.
    else:
        scan = make_scanner(options)  # type: ignore[arg-type]  # The type stubs know it only as a part of `json`.
    return scan


def _scanned(text: str, scan: Scan) -> Any:  # noqa: ANN401 - any JSON
    """The value of a JSON text. Raises ValueError if it is not valid."""
    rest = text.lstrip(JSON_SPACE)
    try:
        value, end = scan(rest, 0)
    except (StopIteration, SystemError):
        # Without `json`, the scanner has no class for most errors. Then the interpreter raises a SystemError.
        raise ValueError("not JSON") from None
    if rest[end:].strip(JSON_SPACE):
        raise ValueError("text after the JSON value")
    return value


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - any JSON
    """The value of a JSON text, as `json.loads` gives it. Raises ValueError if it is not valid, or not UTF-8."""
    scan = _scanner("parse_json", parse_constant=_CONSTANTS.__getitem__)
    return _scanned(text if isinstance(text, str) else text.decode("utf-8"), scan)


def decode(raw: bytes, *, lone_surrogates: bool = False) -> object:
    """Decode JSON. Raises Malformed if the bytes are not valid JSON in UTF-8.

    `lone_surrogates` are escapes of half a surrogate pair. Where they are allowed, the caller checks the texts.
    """
    scan = _scanner("decode", object_pairs_hook=_object, parse_constant=_reject_constant, parse_int=_integer)
    return _decoded(raw, scan, lone_surrogates=lone_surrogates)


def decode_stored(raw: bytes) -> object:
    """Decode JSON that this program has written, three times as fast. Repeated keys are not reported."""
    return _decoded(raw, _scanner("decode_stored", parse_constant=_reject_constant))


def _decoded(raw: bytes, scan: Scan, *, lone_surrogates: bool = False) -> object:
    if raw.count(b"[") + raw.count(b"{") > BRACKETS_SHALLOW:
        from contextfold.common.json_depth import is_too_deep

        if is_too_deep(raw):
            raise Malformed("is nested too deeply")
    try:
        value: object = _scanned(raw.decode("utf-8"), scan)
        if not lone_surrogates and (b"\\ud" in raw or b"\\uD" in raw):
            import json

            # Encoding fails for a lone surrogate, which is not valid text.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as problem:
        raise Malformed("is not JSON in UTF-8") from problem
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    doubled = RepeatedKeys(members)
    from collections import Counter

    doubled.repeated = frozenset(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return doubled


def _integer(digits: str) -> int:
    """Convert an integer. A longer one becomes a value outside of 64 bits, because converting many digits is slow."""
    return int(digits) if len(digits) <= INTEGER_DIGITS else -BEYOND_64_BITS if digits[0] == "-" else BEYOND_64_BITS


def _reject_constant(name: str) -> object:
    raise Malformed(f"{name} is not JSON")


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
