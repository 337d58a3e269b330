"""Takes the secrets out of a text. Owns finding, judging, naming and replacing them; knows no file and no rule by name.

A text is worked on as UTF-8 bytes. First every redaction that already stands in it is folded into one byte that no
UTF-8 text has, so that no rule sees into it and nothing that merely looks like one is spared. Then the rules whose
keywords occur replace what they find by that byte too, again and again until they find nothing more: a text at rest
is what scrubbing it once more gives back. Time is linear in the text: RE2 is, each rule's search moves on after every
match by what it read, and the passes are counted.

Much of what comes is JSON, some of it within JSON: there a line ends in a backslash and an `n`, and that letter stands
right before a key that begins the next one. So each pass reads such a text as it is and as it is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import re2  # type: ignore[import-untyped]

from contextfold.common.record import Record
from contextfold.scrub.likeness import looks_secret
from contextfold.scrub.rules import Allowlist, Rule, RulesInvalid, compiled

FOLDED = b"\xff"
INSIDE_CHARACTER = range(0x80, 0xC0)  # the bytes of a character after its first
PREVIEW_CHARACTERS = 4
PREVIEW_SHARE = 4  # a preview shows at most one character in so many
PASSES = 12
LOOSE_BYTES = 1_000  # a loosely described value that is longer ends where its first word after that does
REREAD_BYTES = 300  # a refused value up to this long is searched for secrets of its own
REMEMBERED_VALUES, REMEMBERED_BYTES = 1_000, 64  # verdicts kept while one rule reads one text
KEYWORD_MEMORY_BYTES = 64 << 20  # a text with every keyword needs many states

_MARKER = compiled(r"\[REDACTED:([a-z0-9-]{1,64}):[A-Za-z0-9_-]{0,4}\]", as_bytes=True)
_ESCAPED = re.compile(rb"\\+[nrt\"]")  # in JSON, or in JSON that stands in JSON
_GAP = compiled(r"\s|\\[nrt]", as_bytes=True)
_PREVIEW = re.compile(rb"[A-Za-z0-9_-]{0,4}")  # so small a pattern is Python's own several times faster at


class Scrubbed(Record):
    """A text without its secrets, how many were taken out now, and by which rules, in order of appearance."""

    text: str
    redactions: int
    rules: tuple[str, ...]


class _Finding(Record):
    """A secret in the bytes; `rank` is the place of its rule."""

    start: int
    end: int
    rank: int


class _Marker(Record):
    """What a folded byte stands for; `rank` is None for one that was in the text already."""

    text: bytes
    rank: int | None


class Scrubber:
    """Made once, used for many texts, by several threads if need be."""

    def __init__(self, rules: Sequence[Rule], allowlist: Allowlist) -> None:
        self._rules = tuple(rules)
        self._heads = tuple(b"[REDACTED:%s:" % rule.id.encode() for rule in rules)
        self._known = frozenset(rule.id.encode() for rule in rules)
        if unknown := sorted(allowlist.rules_off - {rule.id for rule in rules}):
            raise RulesInvalid(
                f"the allowlist turns off {unknown[0]!r}, which is no rule: take the id from a redaction"
            )
        self._patterns = tuple(compiled(rule.pattern, as_bytes=True) for rule in rules)
        self._groups = tuple(
            range(rule.group, pattern.groups + 1) if rule.group else range(0)
            for rule, pattern in zip(self._rules, self._patterns, strict=True)
        )
        self._allowed_values = frozenset(value.encode("utf-8", "surrogatepass") for value in allowlist.values)
        self._allowed_patterns = tuple(compiled(pattern, as_bytes=False) for pattern in allowlist.patterns)
        active = [rank for rank, rule in enumerate(self._rules) if rule.id not in allowlist.rules_off]
        keywords = sorted({keyword.lower() for rank in active for keyword in self._rules[rank].keywords})
        self._ranks = tuple(
            tuple(rank for rank in active if keyword in map(str.lower, self._rules[rank].keywords))
            for keyword in keywords
        )
        self._keywords = _keyword_set(keywords)

    def scrub(self, text: str) -> Scrubbed:
        """The text with every secret found in it replaced by `[REDACTED:rule-id:preview]`."""
        raw = text.encode("utf-8", "surrogatepass")
        if not self._candidates(raw):
            return Scrubbed(text, 0, ())
        folded, markers = self._fold(raw)
        for _ in range(PASSES):
            findings = self._findings(folded)
            if not findings:
                return self._unfolded(text, folded, markers)
            folded, markers = self._replaced(folded, markers, findings)
        # Only a text made for it uncovers a new secret at every pass. It gets no say in when to stop.
        first = min(finding.rank for finding in findings)
        marker = _Marker(self._heads[first] + b"]", first)
        return self._unfolded(text, FOLDED, [marker])

    def _candidates(self, raw: bytes) -> list[int]:
        """The places of the rules of which a keyword occurs."""
        matched = self._keywords.Match(raw) or ()
        return sorted({rank for number in matched for rank in self._ranks[number]})

    def _fold(self, raw: bytes) -> tuple[bytes, list[_Marker]]:
        """Redactions of our own making, each as one byte. A preview is too short to be a secret worth the name."""
        pieces: list[bytes] = []
        markers: list[_Marker] = []
        done = 0
        if b"[REDACTED:" not in raw:
            return raw, markers
        for match in _MARKER.finditer(raw):
            if match.group(1) in self._known:
                pieces.append(raw[done : match.start()])
                markers.append(_Marker(match.group(), None))
                done = match.end()
        pieces.append(raw[done:])
        return FOLDED.join(pieces), markers

    def _findings(self, folded: bytes) -> list[_Finding]:
        """Every secret of one pass; those that overlap or touch are one, named by the rule that stands first."""
        ranks = self._candidates(folded)  # what is meant has no keyword that is not written
        readings = _readings(folded) if ranks else ()
        found = [finding for reading in readings for rank in ranks for finding in self._found_by(rank, reading)]
        merged: list[_Finding] = []
        for finding in sorted(found):
            last = merged[-1] if merged else None
            if last is not None and finding.start <= last.end:
                merged[-1] = _Finding(last.start, max(last.end, finding.end), min(last.rank, finding.rank))
            else:
                merged.append(finding)
        return merged

    def _found_by(self, rank: int, folded: bytes) -> Iterator[_Finding]:
        rule, search, groups = self._rules[rank], self._patterns[rank].search, self._groups[rank]
        verdicts: dict[bytes, bool] = {}
        position = 0
        while position < len(folded):  # bounded: each round moves the position on
            match = search(folded, position)
            if match is None:
                return
            start, end = _secret_span(match, groups)
            value = folded[start:end]
            verdict = verdicts.get(value)
            if verdict is None:
                verdict = self._is_secret(rule, value)
                if len(value) <= REMEMBERED_BYTES and len(verdicts) < REMEMBERED_VALUES:
                    verdicts[value] = verdict
            if verdict:
                if rule.entropy is not None and end - start > LOOSE_BYTES:
                    end = _loose_end(folded, start, end)
                yield _whole_characters(folded, start, end, rank)
                position = end
            else:
                short = end - start <= REREAD_BYTES
                position = max(start if short else end, match.start() + 1)

    def _is_secret(self, rule: Rule, value: bytes) -> bool:
        """Whether what a rule matched is to be redacted; what was redacted already says nothing for or against it."""
        if len(value) > LOOSE_BYTES and rule.entropy is not None and value.startswith(FOLDED) and _GAP.search(value):
            return False  # the rest of what was too long to be one value
        value = value.replace(FOLDED, b"").strip()
        if not value or value in self._allowed_values:
            return False
        if rule.entropy is not None and not looks_secret(value, minimum_entropy=rule.entropy, words=rule.words):
            return False
        return not (self._allowed_patterns and self._is_allowed(value.decode("utf-8", "replace")))

    def _is_allowed(self, value: str) -> bool:
        return any(pattern.fullmatch(value) for pattern in self._allowed_patterns)

    def _replaced(self, folded: bytes, markers: list[_Marker], findings: list[_Finding]) -> tuple[bytes, list[_Marker]]:
        """The bytes with each finding folded away, and what all folded bytes stand for, in their order."""
        pieces: list[bytes] = []
        kept: list[_Marker] = []
        done = passed = 0
        for finding in findings:
            between = folded[done : finding.start]
            pieces.append(between)
            standing = between.count(FOLDED)
            kept += markers[passed : passed + standing]
            kept.append(self._marker(folded, finding))
            passed += standing + folded.count(FOLDED, finding.start, finding.end)
            done = finding.end
        pieces.append(folded[done:])
        return FOLDED.join(pieces), kept + markers[passed:]

    def _marker(self, folded: bytes, finding: _Finding) -> _Marker:
        """The redaction of a finding. Beside another one it shows nothing: both may be parts of one secret."""
        start, end, rank = finding
        preview = b""
        if not (folded.startswith(FOLDED, end) or (start and folded.startswith(FOLDED, start - 1))):
            secret = folded[start:end]
            characters = len(secret) if secret.isascii() else len(secret.decode("utf-8", "replace"))
            match = _PREVIEW.match(secret, 0, min(PREVIEW_CHARACTERS, characters // PREVIEW_SHARE))
            preview = match.group() if match else b""
        return _Marker(b"%s%s]" % (self._heads[rank], preview), rank)

    def _unfolded(self, text: str, folded: bytes, markers: list[_Marker]) -> Scrubbed:
        ranks = [marker.rank for marker in markers if marker.rank is not None]
        if not ranks:
            return Scrubbed(text, 0, ())
        pieces = folded.split(FOLDED)
        assert len(pieces) == len(markers) + 1
        whole = b"".join(part for piece, marker in zip(pieces, markers, strict=False) for part in (piece, marker.text))
        ids = tuple(self._rules[rank].id for rank in ranks)
        return Scrubbed((whole + pieces[-1]).decode("utf-8", "surrogatepass"), len(ranks), ids)


def _readings(folded: bytes) -> Sequence[bytes]:
    """The bytes, and if anything in them is escaped the same with blanks and quotes for it, each byte in its place."""
    meant = _ESCAPED.sub(_meant, folded) if b"\\" in folded else folded
    return (folded,) if meant == folded else (folded, meant)


def _meant(escaped: re.Match[bytes]) -> bytes:
    sign = escaped.group()
    return (b'"' if sign.endswith(b'"') else b"\n").rjust(len(sign))


def _keyword_set(keywords: Sequence[str]) -> re2.Set:
    """All keywords in one automaton. One that ran out of memory would say that nothing was found, so it is tried."""
    options = re2.Options()
    options.literal = True
    options.case_sensitive = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = KEYWORD_MEMORY_BYTES
    found = re2.Set.SearchSet(options)
    for keyword in keywords:
        found.Add(keyword.encode("utf-8"))
    found.Compile()
    everything = "\n".join(keywords).encode("utf-8")
    assert not keywords or len(found.Match(everything) or ()) == len(keywords), "the keyword automaton has no memory"
    return found


def _secret_span(match: re2._Match, groups: range) -> tuple[int, int]:
    """The group that is the secret, or the next that took part; alternatives of a pattern have a group each."""
    for number in groups:
        start, end = match.span(number)
        if start >= 0:
            return start, end
    start, end = match.span()
    return start, end


def _loose_end(folded: bytes, start: int, end: int) -> int:
    """Where a loosely described value of great length ends: a quote that is never closed must not take the text."""
    gap = _GAP.search(folded, start + LOOSE_BYTES, end)
    return int(gap.start()) if gap else end


def _whole_characters(folded: bytes, start: int, end: int, rank: int) -> _Finding:
    """The span, widened where it cuts through a character."""
    while start > 0 and folded[start] in INSIDE_CHARACTER:  # bounded: a character has at most four bytes
        start -= 1
    while end < len(folded) and folded[end] in INSIDE_CHARACTER:
        end += 1
    return _Finding(start, end, rank)
