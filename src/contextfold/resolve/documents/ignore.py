"""Matches paths with the patterns of .gitignore files. Pure; names are bytes; reads no file.

The rules are those of git. As in git, `?` matches one byte. A pattern is compiled once. Matching a path takes time
linear in its length: stars inside one path component are matched from left to right without backtracking, and `**` is
matched with a set of positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from contextfold.common.record import Record

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SLASH = b"/"
STARS = b"**"
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


class _AnyFolders:
    """A `**` between slashes: any number of path components."""


_ANY_FOLDERS = _AnyFolders()
_Component = re.Pattern[bytes] | _AnyFolders


class Pattern(Record):
    """One line of a .gitignore file.

    `negated` means that matching paths are not excluded. A pattern without a slash has a `name`, which is compared
    with the last component of a path. Any other has `paths`, which are alternatives and are compared with the path
    relative to the folder of the .gitignore file.
    """

    negated: bool
    folders_only: bool
    name: re.Pattern[bytes] | None
    paths: tuple[tuple[_Component, ...], ...]

    @property
    def can_match(self) -> bool:
        """Whether there is a path that it matches."""
        return bool(self.paths) if self.name is None else self.name is not NEVER

    def matches(self, components: Sequence[bytes], *, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        if self.name is not None:
            return self.name.fullmatch(components[-1]) is not None
        return any(_path_matches(path, components) for path in self.paths)


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
        for number, pattern in self._others:
            if number < decided:
                break
            if pattern.matches(components, is_folder=is_folder):
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
    if SLASH not in text:
        return Pattern(negated, folders_only, _compiled(text), ())
    paths = tuple(path for text in _alternatives(text.removeprefix(SLASH)) if (path := _path(text)) is not None)
    return Pattern(negated, folders_only, None, paths)


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


def _path(text: bytes) -> tuple[_Component, ...] | None:
    """Compile a pattern with slashes; None if it cannot match any path."""
    components: list[_Component] = []
    for component in _split(text):
        if len(component) >= len(STARS) and not component.strip(b"*"):
            if not (components and components[-1] is _ANY_FOLDERS):
                components.append(_ANY_FOLDERS)
        elif component and (pattern := _compiled(component)) is not NEVER:
            components.append(pattern)
        else:
            return None
    return tuple(components)


def _split(text: bytes) -> Iterator[bytes]:
    """Split a pattern at its slashes, except those in brackets."""
    start = at = 0
    while at < len(text):
        if text[at : at + 1] == b"[":
            try:
                at = _bracket(text, at)[1]
            except _Unmatchable:
                at += 1
        elif text[at : at + 2] == b"\\/":
            # In git, a `**` before an escaped slash matches at least one component.
            if at - start >= len(STARS) and not text[start:at].strip(b"*"):
                yield b"*"
            yield text[start:at]
            at += 2
            start = at
        elif text[at : at + 1] == b"\\":
            at += 2
        elif text[at : at + 1] == SLASH:
            yield text[start:at]
            at += 1
            start = at
        else:
            at += 1
    yield text[start:]


def _path_matches(path: Sequence[_Component], components: Sequence[bytes]) -> bool:
    """Compare a path with a pattern. Tracks all positions in the pattern that the components so far can lead to."""
    end = len(path)
    positions = _with_skipped(path, {0})
    for number, component in enumerate(components):
        is_last = number == len(components) - 1
        following = set()
        for position in positions:
            if position == end:
                continue
            expected = path[position]
            if isinstance(expected, _AnyFolders):
                following.add(position)
                # A `**` at the end needs at least one component; elsewhere it may match none.
                if is_last and position == end - 1:
                    return True
            elif expected.fullmatch(component):
                following.add(position + 1)
        positions = _with_skipped(path, following)
        if not positions:
            return False
    return end in positions


def _with_skipped(path: Sequence[_Component], positions: set[int]) -> set[int]:
    """Add the positions after each `**`, which may match no component."""
    reached = set(positions)
    for position in positions:
        if position < len(path) - 1 and path[position] is _ANY_FOLDERS:
            reached.add(position + 1)
    return reached


def _compiled(text: bytes) -> re.Pattern[bytes]:
    """Compile one path component to a regular expression without backtracking.

    Each run between stars is matched at its first occurrence, which is always right because a star follows it. The
    last run must match at the end of the name.
    """
    try:
        first, *rest = _runs(text)
    except _Unmatchable:
        return NEVER
    if not rest:
        return re.compile(b"".join(first), re.DOTALL)
    middle = b"".join(b"(?>[^/]*?" + b"".join(run) + b")" for run in rest[:-1] if run)
    last = b"(?=[^/]{%d})[^/]*+(?<=%b)" % (len(rest[-1]), b"".join(rest[-1])) if rest[-1] else b"[^/]*+"
    return re.compile(b"".join(first) + middle + last, re.DOTALL)


def _runs(text: bytes) -> Iterator[list[bytes]]:
    """The runs between the stars, each as a list with a regular expression for each byte."""
    run: list[bytes] = []
    at = 0
    while at < len(text):
        letter = text[at : at + 1]
        if letter == b"*":
            yield run
            run = []
            at += 1
        elif letter == b"?":
            run.append(b"[^/]")
            at += 1
        elif letter == b"[":
            expression, at = _bracket(text, at)
            run.append(expression)
        elif letter == b"\\":
            if at + 1 == len(text):
                raise _Unmatchable
            run.append(re.escape(text[at + 1 : at + 2]))
            at += 2
        else:
            run.append(re.escape(letter))
            at += 1
    yield run


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
