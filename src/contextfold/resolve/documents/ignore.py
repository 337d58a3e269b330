"""Matches paths with the patterns of .gitignore files. Pure; names are bytes; reads no file.

The rules are those of git. As in git, `?` matches one byte. A pattern is compiled once, to a regular expression that
matches in bounded time: what is between two stars, or between two `**`, is matched at its first occurrence. That is
always right, because whatever comes between it and the next part is matched by the star, so it never backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SLASH = b"/"
ESCAPED_SLASH = b"\\/"
STAR = b"*"
# No system accepts a path that a longer pattern could match.
PATTERN_MAX_BYTES = 4096
SPECIAL = re.compile(rb"[*?\[\\]")
DOUBLE_STAR_AT_START = re.compile(rb"\*\*+(?=/|\\/|\Z)")
NEVER = re.compile(rb"(?!)")

DELETE = 0x7F
_CLASSES: dict[bytes, Callable[[int], bool]] = {
    b"alnum": lambda byte: chr(byte).isalnum(),
    b"alpha": lambda byte: chr(byte).isalpha(),
    b"blank": lambda byte: byte in b" \t",
    b"cntrl": lambda byte: byte < ord(" ") or byte == DELETE,
    b"digit": lambda byte: chr(byte).isdigit(),
    b"graph": lambda byte: ord(" ") < byte < DELETE,
    b"lower": lambda byte: chr(byte).islower(),
    b"print": lambda byte: ord(" ") <= byte < DELETE,
    b"punct": lambda byte: ord(" ") < byte < DELETE and not chr(byte).isalnum(),
    b"space": lambda byte: byte in b" \t\n\v\f\r",
    b"upper": lambda byte: chr(byte).isupper(),
    b"xdigit": lambda byte: byte in b"0123456789abcdefABCDEF",
}
_ASCII = range(0x80)


class _Unmatchable(ValueError):
    """A pattern that matches no path."""


class Pattern(NamedTuple):
    """One line of a .gitignore file.

    `negated` means that matching paths are not excluded. The expression of a pattern without a slash is compared with
    the last component of a path, any other with the path relative to the folder of the .gitignore file.
    """

    negated: bool
    folders_only: bool
    of_name: bool
    expression: re.Pattern[bytes]

    @property
    def can_match(self) -> bool:
        """Whether there is a path that it matches."""
        return self.expression is not NEVER

    def matches(self, components: Sequence[bytes], path: bytes, *, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return self.expression.fullmatch(components[-1] if self.of_name else path) is not None


class IgnoreFile:
    """The patterns of one .gitignore file or one option. The last pattern that matches a path decides."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        # Plain names are looked up in a dictionary; only other patterns are compared one by one. `_excludes` has, for
        # each pattern by its number, whether it excludes the paths that it matches.
        self._names: dict[bytes, int] = {}
        self._others: list[tuple[int, Pattern]] = []
        self._excludes: list[bool] = []
        for line in lines:
            number = len(self._excludes)
            if name := _plain_name(line):
                self._names[name] = number
                self._excludes.append(not line.startswith(b"!"))
            elif pattern := parse_pattern(line):
                self._others.append((number, pattern))
                self._excludes.append(not pattern.negated)
        self._others.reverse()

    def __bool__(self) -> bool:
        return bool(self._excludes)

    def verdict(self, components: Sequence[bytes], *, is_folder: bool) -> bool | None:
        """Whether a path, relative to this file's folder, is excluded; None if no pattern matches."""
        decided = self._names.get(components[-1], -1)
        path = SLASH.join(components)
        for number, pattern in self._others:
            if number < decided:
                break
            if pattern.matches(components, path, is_folder=is_folder):
                decided = number
                break
        return None if decided < 0 else self._excludes[decided]


def ignore_file(raw: bytes) -> IgnoreFile:
    """Parse the bytes of a .gitignore file."""
    lines = raw.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    return IgnoreFile(line.removesuffix(b"\r") for line in lines if not line.startswith(b"#"))


def parse_pattern(line: bytes) -> Pattern | None:
    """Parse a line; None if it has no pattern. `ignore_file` has already removed comments."""
    text = _without_trailing_spaces(line)
    negated = text.startswith(b"!")
    text = text.removeprefix(b"!")
    folders_only = text.endswith(SLASH)
    text = text.removesuffix(SLASH)
    if not text or len(text) > PATTERN_MAX_BYTES or b"\0" in text:
        return None
    of_name = SLASH not in text
    expressions: list[bytes] = []
    for alternative in [text] if of_name else _alternatives(text.removeprefix(SLASH)):
        try:
            expressions.append(_component(list(_tokens(alternative))) if of_name else _path(alternative))
        except _Unmatchable:
            continue
    expression = re.compile(b"|".join(expressions), re.DOTALL) if expressions else NEVER
    return Pattern(negated, folders_only, of_name, expression)


def _without_trailing_spaces(line: bytes) -> bytes:
    stripped = line.rstrip(b" ")
    if stripped == line:
        return line
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return stripped + b" " if backslashes % 2 else stripped


def _plain_name(line: bytes) -> bytes | None:
    """The name in a line without wildcards and slashes; None for any other line."""
    if SPECIAL.search(line) or SLASH in line or len(line) > PATTERN_MAX_BYTES:
        return None
    return _without_trailing_spaces(line).removeprefix(b"!")


def _alternatives(text: bytes) -> Iterator[bytes]:
    """Imitate git for a `**` after plain letters: git removes the letters first and then treats it as `**/`."""
    special = SPECIAL.search(text)
    stars = DOUBLE_STAR_AT_START.match(text, special.start()) if special else None
    if stars is None or stars.start() == 0 or text[stars.start() - 1 : stars.start()] == SLASH:
        yield text
        return
    before, after = text[: stars.start()], text[stars.end() :]
    if after:
        rest = after.removeprefix(b"\\").removeprefix(SLASH)
        # This alternative does not exist for an escaped slash after the stars.
        if after.startswith(SLASH):
            yield before + rest
        yield before + b"*/**/" + rest
    else:
        yield before + b"*"
        yield before + b"*/**"


def _path(text: bytes) -> bytes:
    """The regular expression of a pattern with slashes."""
    components: list[list[bytes]] = [[]]
    for token in _tokens(text):
        if token not in (SLASH, ESCAPED_SLASH):
            components[-1].append(token)
            continue
        # In git, a `**` before an escaped slash matches at least one component.
        if token == ESCAPED_SLASH and _is_any_folders(components[-1]):
            components.insert(-1, [STAR])
        components.append([])
    # The parts between `**`, each with a slash at its end.
    parts = [b""]
    for component in components:
        if not _is_any_folders(component):
            parts[-1] += _component(component) + SLASH
        elif parts[-1] or len(parts) == 1:
            parts.append(b"")
    first, *middle = parts
    if not middle:
        return first.removesuffix(SLASH)
    # A `**` at the end needs at least one component; elsewhere it may match none.
    last = b"(?:[^/]+/)*?" + middle.pop().removesuffix(SLASH) if middle[-1] else b".+"
    return first + b"".join(b"(?>(?:[^/]+/)*?%b)" % part for part in middle if part) + last


def _is_any_folders(component: list[bytes]) -> bool:
    """Whether a component is a `**`, which stands for any number of path components."""
    return len(component) > 1 and set(component) == {STAR}


def _component(tokens: list[bytes]) -> bytes:
    """The regular expression of one path component. The last run between stars must match at the end of the name."""
    if not tokens:
        raise _Unmatchable
    runs: list[list[bytes]] = [[]]
    for token in tokens:
        if token == STAR:
            runs.append([])
        else:
            runs[-1].append(token)
    first, *middle = runs
    if not middle:
        return b"".join(first)
    run = middle.pop()
    last = b"(?=[^/]{%d})[^/]*+(?<=%b)" % (len(run), b"".join(run)) if run else b"[^/]*+"
    return b"".join(first) + b"".join(b"(?>[^/]*?%b)" % b"".join(run) for run in middle if run) + last


def _tokens(text: bytes) -> Iterator[bytes]:
    """The stars and slashes of a pattern, and a regular expression for each byte between them."""
    at = 0
    while at < len(text):
        token = text[at : at + 1]
        at += 1
        if token in (STAR, SLASH):
            yield token
        elif token == b"?":
            yield b"[^/]"
        elif token == b"[":
            expression, at = _bracket(text, at - 1)
            yield expression
        elif token == b"\\":
            escaped = text[at : at + 1]
            if not escaped:
                raise _Unmatchable
            yield ESCAPED_SLASH if escaped == SLASH else re.escape(escaped)
            at += 1
        else:
            yield re.escape(token)


def _bracket(text: bytes, start: int) -> tuple[bytes, int]:
    """A set of bytes in brackets as a regular expression, and the position after it."""
    negated = text[start + 1 : start + 2] in (b"!", b"^")
    first = at = start + 1 + negated
    chosen: set[int] = set()
    # The first byte of a range, if a `-` follows; negative if no range can start here.
    low = -1
    while True:
        byte = _byte(text, at)
        if byte == ord("]") and at > first:
            break
        if byte == ord("-") and low >= 0 and at + 1 < len(text) and text[at + 1] != ord("]"):
            at += 1 + (text[at + 1] == ord("\\"))
            chosen.update(range(low, _byte(text, at) + 1))
            low = -1
        elif text.startswith(b"[:", at) and (named := _named_class(text, at)):
            members, at = named
            chosen |= members
            low = -1
        else:
            at += byte == ord("\\")
            low = _byte(text, at)
            chosen.add(low)
        at += 1
    if negated:
        chosen = set(range(1, 0x100)) - chosen
    chosen.discard(ord("/"))
    if not chosen:
        raise _Unmatchable
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(chosen)) + b"]", at + 1


def _byte(text: bytes, at: int) -> int:
    if at >= len(text):
        raise _Unmatchable
    return text[at]


def _named_class(text: bytes, at: int) -> tuple[set[int], int] | None:
    """The bytes of a class such as [:alpha:] and the position of its last byte; None if it is not a class."""
    end = text.find(b"]", at + 2)
    if end < 0:
        raise _Unmatchable
    if end - 1 < at + 2 or text[end - 1] != ord(":"):
        return None
    member = _CLASSES.get(text[at + 2 : end - 1])
    if member is None:
        raise _Unmatchable
    return {byte for byte in _ASCII if member(byte)}, end
