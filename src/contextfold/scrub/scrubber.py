"""Redacts the secrets in a text: finds, judges and replaces them.

The text is processed as UTF-8 bytes. Each redaction, old or new, is represented by one byte that valid UTF-8 never
contains, so that no rule matches inside a redaction and a text that merely resembles one is not spared. The rules whose
keywords occur are applied in passes until none of them finds anything more. So scrubbing a scrubbed text again does not
change it. Time is linear in the size of the text: RE2 is linear, each rule's search continues after its last match, and
the number of passes is bounded.

Much of the text is JSON, sometimes inside JSON, or percent-encoded, or coloured for a terminal. There a newline is
written as a backslash and an `n`, and that letter would precede a key that begins the next line. So every pass reads
such a text twice: unchanged, and with those sequences replaced by the characters they represent.

A value that was redacted once is redacted wherever else the text contains it, also in base64 and percent-encoding.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import re2  # type: ignore[import-untyped]

from contextfold.scrub.rules import (
    NAME_GROUP,
    Allowlist,
    AllowlistInvalid,
    Match,
    Pattern,
    Rule,
    byte_options,
    compile_bytes,
    compile_pattern,
    parse_allowlist,
    parse_rules,
    read_rules_file,
)
from contextfold.scrub.secret_shape import copies_are_secret, looks_secret

SCRUBBERS_MAX, COMPILED_RULES_MAX = 4, 2_000
REDACTION_BYTE = b"\xff"
# The bytes of a UTF-8 character after its first.
CONTINUATION_BYTES = range(0x80, 0xC0)
PASSES = 12
# A loosely described value that is longer than this ends at the next white space.
LOOSE_BYTES = 1_000
# A rejected value up to this long is searched for secrets of its own.
REREAD_BYTES = 300
# The decisions that are remembered while one rule reads one text, and the longest value among them.
REMEMBERED_VALUES, REMEMBERED_BYTES = 1_000, 64
# An automaton of many literals needs many states.
LITERALS_MEMORY_BYTES = 64 << 20
# The copies of this many different values are searched for, each up to this long. Only a hostile text has more.
COPIED_VALUES, COPIED_BYTES = 1_000, 512
# A shorter value that is part of a longer word is not a copy.
GLUED_COPY_BYTES = 12
# The lines after a keyword in which the rules that are marked as near look for a secret.
NEAR_LINES = 3
# The backslashes before an escaped sign, as in JSON inside JSON.
BACKSLASHES = 16
# The part of an encoded value that is decoded and searched.
DECODED_BYTES = 1 << 16

_MARKER = compile_bytes(r"\[REDACTED:([a-z0-9-]{1,64})\]")
_GAP = compile_bytes(r"\s|\\[nrt]")
_ALPHANUMERIC = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_UNRESERVED = re.compile(rb"[^A-Za-z0-9._~-]")
_STANDARD_BASE64 = bytes.maketrans(b"-_", b"+/")

_BACKSLASH_ESCAPES = ((rb"\n", b" \n"), (rb"\r", b" \n"), (rb"\t", b" \n"), (rb"\"", b' "'), (rb"\'", b" '"))
_ENTITIES = tuple(
    (written, sign.rjust(len(written)))
    for sign, names in (
        (b'"', (b"&quot;", b"&#34;", b"&#x22;")),
        (b"'", (b"&apos;", b"&#39;", b"&#x27;")),
        (b"&", (b"&amp;",)),
    )
    for written in names
)
_BACKSLASH_CODE = re.compile(rb"\\(?:u00(?:0[aAdD9]|2[267]|3[cCdDeE])|(?:u001[bB]|x1[bB]|033|e)\[[0-9;]{0,12}[mK])")
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,12}[mK]")
_PERCENT_CODE = re.compile(rb"%(?:0[aAdD9]|2[02367cC]|3[aAdDfFbB]|[57][bBdD])")

_ESCAPED_LINES = compile_bytes(
    r"(?:[^\n]*\n)?(?:[^\n]*(?:\\[nrtuxe0\"'\\]|%[0-9A-Fa-f]{2}|\x1b\[|&(?:quot|apos|amp|#))[^\n]*(?:\n|$)(?:[^\n]*(?:\n|$))?)+",
    longest_match=True,
    never_capture=True,
)

# Separates parts of a text that are not adjacent, so that no rule matches across them.
_PART_SEPARATOR = b"\n\xff\n"


class ScrubResult(NamedTuple):
    """A scrubbed text, the number of new redactions, and the rules that caused them, in order of appearance."""

    text: str
    redactions: int
    rules: tuple[str, ...]


class _SecretMatch(NamedTuple):
    """A secret in the bytes; `rank` is the index of its rule."""

    start: int
    end: int
    rank: int


class _Marker(NamedTuple):
    """The redaction that a byte represents; `rank` is None for one that the text already contained."""

    text: bytes
    rank: int | None


class _CompiledRule(NamedTuple):
    """A rule's patterns, the groups that may contain the secret, and the group with its name, or 0."""

    pattern: Pattern
    each: Pattern | None
    groups: range
    name_group: int


@lru_cache(SCRUBBERS_MAX)
def standard_scrubber(allowlist_text: str = "") -> Scrubber:
    """The scrubber with the standard rules and the user's allowlist. Raises AllowlistInvalid."""
    return Scrubber(parse_rules(read_rules_file()), parse_allowlist(allowlist_text))


class Scrubber:
    """Redacts texts. One instance is used for many texts, also by several threads."""

    def __init__(self, rules: Sequence[Rule], allowlist: Allowlist) -> None:
        self._rules = tuple(rules)
        self._redactions = tuple(b"[REDACTED:%s]" % rule.id.encode() for rule in rules)
        self._known = frozenset(rule.id.encode() for rule in rules)
        if unknown := sorted(allowlist.rules_off - {rule.id for rule in rules}):
            raise AllowlistInvalid(
                f"the allowlist turns off {unknown[0]!r}, which is no rule: take the id from a redaction"
            )
        self._allowed_values = frozenset(value.encode("utf-8", "surrogatepass") for value in allowlist.values)
        self._allowed_patterns = tuple(compile_pattern(pattern) for pattern in allowlist.patterns)
        active = [rank for rank, rule in enumerate(self._rules) if rule.id not in allowlist.rules_off]
        ranks: dict[str, list[int]] = {}
        for rank in active:
            for keyword in self._rules[rank].keywords:
                ranks.setdefault(keyword, []).append(rank)
        # The rules of each keyword, in the order of the keywords.
        self._ranks = tuple(tuple(ranks[keyword]) for keyword in sorted(ranks))
        self._keywords = _compile_keywords(sorted(ranks))
        self._near_lines = _compile_near_lines(
            sorted({word for rank in active if rules[rank].near for word in rules[rank].keywords})
        )

    def scrub(self, text: str) -> ScrubResult:
        """The text with every secret that was found replaced by `[REDACTED:rule-id]`."""
        raw = text.encode("utf-8", "surrogatepass")
        ranks = self._select_rules(raw)
        if not ranks:
            return ScrubResult(text, 0, ())
        folded, markers = self._hide_redactions(raw)
        copied: dict[bytes, int] = {}
        for _ in range(PASSES):
            findings = self._find_secrets(folded, ranks, copied)
            if not findings:
                return self._restore(text, folded, markers)
            new = [(start, end, _Marker(self._redactions[rank], rank)) for start, end, rank in findings]
            folded, markers = _replace(folded, markers, new)
            ranks = self._select_rules(folded)
        # Only a hostile text uncovers a new secret in every pass. It is redacted as a whole.
        first = min(finding.rank for finding in findings)
        return self._restore(text, REDACTION_BYTE, [_Marker(self._redactions[first], first)])

    def _select_rules(self, raw: bytes) -> list[int]:
        """The indexes of the rules that have a keyword in the text."""
        matched = self._keywords.Match(raw) or ()
        return sorted({rank for number in matched for rank in self._ranks[number]})

    def _hide_redactions(self, raw: bytes) -> tuple[bytes, list[_Marker]]:
        """The text with one byte for each redaction by one of our rules, and the redactions."""
        if b"[REDACTED:" not in raw:
            return raw, []
        known = [match for match in _MARKER.finditer(raw) if match.group(1) in self._known]
        return _replace(raw, [], [(*match.span(), _Marker(match.group(), None)) for match in known])

    def _find_secrets(self, folded: bytes, ranks: Sequence[int], copied: dict[bytes, int]) -> list[_SecretMatch]:
        """The secrets that one pass finds, merged where they overlap or touch; `copied` gets the new values."""
        found = list(self._apply_rules(folded, ranks))
        for start, end, rank in found:
            self._remember(folded[start:end], rank, copied)
        if found:
            found += _find_copies(folded, copied)
        return _merge(found)

    def _apply_rules(self, folded: bytes, ranks: Sequence[int]) -> Iterator[_SecretMatch]:
        near = [rank for rank in ranks if self._rules[rank].near]
        far = [rank for rank in ranks if not self._rules[rank].near]
        yield from self._search(folded, far, near)
        # The meaning of an escape sequence never completes a keyword, so the same rules apply.
        meant = _unescape_lines(folded) if ranks else None
        if meant is not None:
            for finding in self._search(meant.text, far, near):
                yield from meant.original(finding)

    def _search(self, folded: bytes, far: Sequence[int], near: Sequence[int]) -> Iterator[_SecretMatch]:
        for rank in far:
            yield from self._apply_rule(rank, folded)
        lines = _parts(folded, [match.span() for match in self._near_lines.finditer(folded)]) if near else None
        if lines is not None:
            for rank in near:
                for finding in self._apply_rule(rank, lines.text):
                    yield from lines.original(finding)

    def _apply_rule(self, rank: int, folded: bytes) -> Iterator[_SecretMatch]:
        rule = self._rules[rank]
        pattern, each, groups, name_group = _compile_rule(rule)
        verdicts: dict[tuple[bytes, bytes], bool] = {}
        position = 0
        # Bounded: each iteration advances the position.
        while position < len(folded):
            match = pattern.search(folded, position)
            if match is None:
                return
            start, end = _secret_span(match, groups)
            if each is not None:
                for inner in each.finditer(folded, start, end):
                    inner_start, inner_end = inner.span(1)
                    if self._is_secret(rule, folded[inner_start:inner_end], b""):
                        yield _widen_to_characters(folded, inner_start, inner_end, rank)
                position = max(end, match.start() + 1)
                continue
            value = folded[start:end]
            # The span of a group that took no part gives an empty name.
            name = folded[slice(*match.span(name_group))] if name_group else b""
            verdict = verdicts.get((name, value))
            if verdict is None:
                verdict = self._is_secret(rule, value, name)
                if len(value) <= REMEMBERED_BYTES and len(verdicts) < REMEMBERED_VALUES:
                    verdicts[name, value] = verdict
            if verdict:
                if rule.entropy is not None and end - start > LOOSE_BYTES:
                    end = _end_of_loose_value(folded, start, end)
                yield _widen_to_characters(folded, start, end, rank)
                position = max(end, match.start() + 1)
            else:
                short = end - start <= REREAD_BYTES
                position = max(start if short else end, match.start() + 1)

    def _is_secret(self, rule: Rule, value: bytes, name: bytes) -> bool:
        """Whether a matched value is to be redacted. Redactions inside it are ignored."""
        if rule.entropy is not None and value.startswith(REDACTION_BYTE) and _GAP.search(value):
            # This is the text after a redaction, or the rest of a value that was too long to be one.
            return False
        value = value.replace(REDACTION_BYTE, b"").strip()
        if not value or value in self._allowed_values:
            return False
        if rule.decode and not self._encodes_a_secret(value):
            return False
        if rule.entropy is not None and not looks_secret(
            value, minimum_entropy=rule.entropy, shape=rule.shape, name=name
        ):
            return False
        return not any(pattern.fullmatch(value.decode("utf-8", "replace")) for pattern in self._allowed_patterns)

    def _encodes_a_secret(self, value: bytes) -> bool:
        """Whether the value is the encoding of an ASCII text in which some other rule finds a secret."""
        decoded = _decode(value[:DECODED_BYTES])
        if not decoded.isascii():
            return False
        ranks = [rank for rank in self._select_rules(decoded) if not self._rules[rank].decode]
        return next(self._apply_rules(decoded, ranks), None) is not None

    def _remember(self, value: bytes, rank: int, copied: dict[bytes, int]) -> None:
        """Add the value and its encodings to the values whose copies are searched for."""
        value = value.strip()
        if len(value) > COPIED_BYTES or len(copied) >= COPIED_VALUES or value in copied or REDACTION_BYTE in value:
            return
        if copies_are_secret(value):
            for form in _encodings_of(value):
                copied.setdefault(form, rank)

    def _restore(self, text: str, folded: bytes, markers: list[_Marker]) -> ScrubResult:
        ranks = [marker.rank for marker in markers if marker.rank is not None]
        if not ranks:
            return ScrubResult(text, 0, ())
        pieces = folded.split(REDACTION_BYTE)
        assert len(pieces) == len(markers) + 1
        whole = b"".join(part for piece, marker in zip(pieces, markers, strict=False) for part in (piece, marker.text))
        ids = tuple(self._rules[rank].id for rank in ranks)
        return ScrubResult((whole + pieces[-1]).decode("utf-8", "surrogatepass"), len(ranks), ids)


def _replace(
    folded: bytes, markers: list[_Marker], new: Iterable[tuple[int, int, _Marker]]
) -> tuple[bytes, list[_Marker]]:
    """The text with one byte for each span, and the redactions of all such bytes in their order."""
    pieces: list[bytes] = []
    all_markers: list[_Marker] = []
    done = passed = 0
    for start, end, marker in new:
        pieces.append(folded[done:start])
        standing = pieces[-1].count(REDACTION_BYTE)
        all_markers += [*markers[passed : passed + standing], marker]
        passed += standing + folded.count(REDACTION_BYTE, start, end)
        done = end
    pieces.append(folded[done:])
    return REDACTION_BYTE.join(pieces), all_markers + markers[passed:]


class _Parts(NamedTuple):
    """Parts of a text, joined, and the offsets of each part: in the joined text and in the original."""

    text: bytes
    starts: tuple[int, ...]
    origins: tuple[int, ...]

    def original(self, finding: _SecretMatch) -> Iterator[_SecretMatch]:
        """The same finding in the original text, unless it spans two parts."""
        start, end, rank = finding
        part = bisect_right(self.starts, start) - 1
        if part + 1 == len(self.starts) or end <= self.starts[part + 1]:
            moved = self.origins[part] - self.starts[part]
            yield _SecretMatch(start + moved, end + moved, rank)


def _parts(text: bytes, spans: Sequence[tuple[int, int]]) -> _Parts | None:
    """The parts of the text that the spans enclose; None without spans."""
    if not spans:
        return None
    starts: list[int] = []
    size = 0
    for first, last in spans:
        starts.append(size)
        size += last - first + len(_PART_SEPARATOR)
    joined = _PART_SEPARATOR.join(text[first:last] for first, last in spans)
    return _Parts(joined, tuple(starts), tuple(first for first, _ in spans))


def _unescape_lines(folded: bytes) -> _Parts | None:
    """The lines with escape sequences and their neighbours, with the sequences decoded; None if there are none."""
    written = _parts(folded, [match.span() for match in _ESCAPED_LINES.finditer(folded)])
    if written is None:
        return None
    meant = _unescape(written.text)
    return None if meant == written.text else _Parts(meant, written.starts, written.origins)


def _unescape(text: bytes) -> bytes:
    """Decode the escape sequences of a text. Padding preserves the offsets of all other bytes."""
    if b"\\" in text:
        text = _BACKSLASH_CODE.sub(_pad(lambda code: b" " if b"[" in code else bytes.fromhex(code[-2:].decode())), text)
        for written, meant in _BACKSLASH_ESCAPES:
            text = text.replace(written, meant)
        # JSON inside JSON has several backslashes before the sign. Each round removes one of them.
        for _ in range(BACKSLASHES):
            if b"\\ " not in text:
                break
            text = text.replace(b"\\ ", b"  ")
    if b"\x1b[" in text:
        text = _COLOUR.sub(_pad(lambda _: b" "), text)
    if b"%" in text:
        text = _PERCENT_CODE.sub(_pad(lambda code: bytes.fromhex(code[1:].decode())), text)
    if b"&" in text:
        for written, meant in _ENTITIES:
            text = text.replace(written, meant)
    return text


def _pad(meaning: Callable[[bytes], bytes]) -> Callable[[re.Match[bytes]], bytes]:
    return lambda match: meaning(match.group()).rjust(match.end() - match.start())


def _decode(value: bytes) -> bytes:
    """The bytes that percent codes, or base64 of either alphabet, with or without padding, represent."""
    if value.startswith(b"%"):
        return bytes(int(code, 16) for code in value[1:].split(b"%") if code)
    digits = value.rstrip(b"=").translate(_STANDARD_BASE64)
    # A single digit at the end, as of a text that was cut, represents no byte.
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))


def _encodings_of(value: bytes) -> Iterator[bytes]:
    """The value and the ways in which a copy of it may be encoded."""
    yield value
    percent = _UNRESERVED.sub(lambda sign: b"%%%02X" % sign.group()[0], value)
    if percent != value:
        yield percent
    # The last characters depend on what follows the value. They are left out where that may be something else.
    encoded = binascii.b2a_base64(value, newline=False)
    whole = encoded if not len(value) % 3 else encoded.rstrip(b"=")[:-1]
    if len(whole) >= GLUED_COPY_BYTES:
        yield whole
        if b"+" in whole or b"/" in whole:
            yield whole.translate(bytes.maketrans(b"+/", b"-_"))


def _find_copies(folded: bytes, copied: dict[bytes, int]) -> Iterator[_SecretMatch]:
    """Every occurrence of the values. Overlapping occurrences give the longest that begins first."""
    if not copied:
        return
    longest_first = sorted(copied, key=len, reverse=True)
    literals = compile_bytes(b"|".join(map(_quote, longest_first)), max_mem=LITERALS_MEMORY_BYTES, never_capture=True)
    for match in literals.finditer(folded):
        start, end = match.span()
        if end - start < GLUED_COPY_BYTES and (
            (start and folded[start - 1] in _ALPHANUMERIC and folded[start] in _ALPHANUMERIC)
            or (end < len(folded) and folded[end] in _ALPHANUMERIC and folded[end - 1] in _ALPHANUMERIC)
        ):
            continue
        yield _widen_to_characters(folded, start, end, copied[match.group()])


def _quote(literal: bytes) -> bytes:
    """The literal as an RE2 pattern."""
    return b"".join(b"%c" % byte if byte in _ALPHANUMERIC else b"\\x%02x" % byte for byte in literal)


def _merge(found: Iterable[_SecretMatch]) -> list[_SecretMatch]:
    """The findings in order. Those that overlap or touch become one, named by the earliest of their rules."""
    merged: list[_SecretMatch] = []
    for finding in sorted(found):
        last = merged[-1] if merged else None
        if last is not None and finding.start <= last.end:
            merged[-1] = _SecretMatch(last.start, max(last.end, finding.end), min(last.rank, finding.rank))
        else:
            merged.append(finding)
    return merged


def _compile_keywords(keywords: Sequence[str]) -> re2.Set:
    """All keywords in one automaton; a keyword with a capital letter matches only as it is written.

    The automaton is tested, because one that runs out of memory would report no match.
    """
    found = re2.Set.SearchSet(byte_options(max_mem=LITERALS_MEMORY_BYTES))
    for keyword in keywords:
        found.Add((b"" if keyword != keyword.lower() else b"(?i)") + _quote(keyword.encode("utf-8")))
    found.Compile()
    everything = "\n".join(keywords).encode("utf-8")
    assert not keywords or len(found.Match(everything) or ()) == len(keywords), "the keyword automaton has no memory"
    return found


@lru_cache(COMPILED_RULES_MAX)
def _compile_rule(rule: Rule) -> _CompiledRule:
    """Compile a rule for the first text that has one of its keywords."""
    pattern = compile_bytes(rule.pattern)
    groups = range(rule.group, pattern.groups + 1) if rule.group else range(0)
    each = compile_bytes(rule.each) if rule.each else None
    return _CompiledRule(pattern, each, groups, pattern.groupindex.get(NAME_GROUP.encode(), 0))


def _compile_near_lines(keywords: Sequence[str]) -> Pattern:
    """A pattern of the longest runs of lines in which a line with a keyword is never more than a few lines away."""
    words = b"|".join(_quote(keyword.encode("utf-8")) for keyword in keywords) or rb"[^\x00-\xff]"
    # An escaped newline ends a line too. Otherwise a JSON document would be one line.
    line, end = rb"(?:[^\n\\]|\\[^n\n])*", rb"(?:\\?\n|\\n|\\?$)"
    pattern = rb"(?i)(?:%s(?:%s)%s%s(?:%s%s){0,%d})+" % (line, words, line, end, line, end, NEAR_LINES)
    return compile_bytes(pattern, longest_match=True, never_capture=True)


def _secret_span(match: Match, groups: range) -> tuple[int, int]:
    """The span of the secret's group, or of the next group that took part: each alternative has a group of its own."""
    for number in groups:
        start, end = match.span(number)
        if start >= 0:
            return start, end
    start, end = match.span()
    return start, end


def _end_of_loose_value(folded: bytes, start: int, end: int) -> int:
    """The end of a loosely described value that is very long: an unclosed quote must not take the rest of the text."""
    gap = _GAP.search(folded, start + LOOSE_BYTES, end)
    return int(gap.start()) if gap else end


def _widen_to_characters(folded: bytes, start: int, end: int, rank: int) -> _SecretMatch:
    """The span, widened where it cuts through a character. Bounded, as a character has at most four bytes."""
    while start > 0 and folded[start] in CONTINUATION_BYTES:
        start -= 1
    while end < len(folded) and folded[end] in CONTINUATION_BYTES:
        end += 1
    return _SecretMatch(start, end, rank)
