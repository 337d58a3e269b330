"""Matches paths with patterns in the syntax of .gitignore files. Pure; reads no file.

`pathspec` compiles and compares the patterns. Here they are written so that one list holds those of several folders,
and so that a folder can be asked about before it is entered: nothing below an excluded folder can be taken again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from contextfold.errors import SourceInvalid
from contextfold.resolve.documents.kinds import is_plain_markdown, is_text_name
from contextfold.resolve.documents.rules import ALL_TEXT, PATTERN_MAX_BYTES, DocumentRules, is_encodable, not_a_pattern

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The backend in pure Python gives the same result on every machine, whatever else is installed there.
BACKEND = "simple"
# `pathspec` does not know the classes of POSIX, such as [:alpha:], and would take them for other brackets.
POSIX_CLASS = re.compile(r"\[:\w*:\]")
# A pattern becomes a regular expression, which may try every way to divide a name among the stars of a segment, and
# every way to divide a path among segments that are `**`. More of them than this would take too long.
STARS_MAX = 4
_STARS = re.compile(r"(\\.)|\*+")


@dataclass(frozen=True)
class PathPatterns:
    """A list of patterns, of which the last one that matches a path decides. Paths are relative to one common folder.

    GitIgnoreSpec compares paths of files only, so there is a list for folders too. A pattern with a slash at its end
    matches folders alone: `folders` has it without the slash. `files` has no such pattern, except a negated one, which
    takes back what a pattern without the slash says about a folder and so about the files in it.
    """

    files: GitIgnoreSpec
    folders: GitIgnoreSpec

    def __bool__(self) -> bool:
        return bool(self.folders)

    def match_file(self, components: Sequence[bytes]) -> bool:
        return self.files.match_file(os.fsdecode(b"/".join(components)))

    def match_folder(self, components: Sequence[bytes]) -> bool:
        return self.folders.match_file(os.fsdecode(b"/".join(components)))

    def followed_by(self, others: PathPatterns) -> PathPatterns:
        """These patterns, and then the others, which decide first."""
        return PathPatterns(self.files + others.files, self.folders + others.folders)


def parse_patterns(lines: Iterable[str], folder: Sequence[bytes] = (), *, file: str = "") -> PathPatterns:
    """Parse lines whose patterns are relative to a folder, which is given relative to the common folder.

    Lines that no path can match are left out, as git does. Raises SourceInvalid for a pattern that would take too long
    to match; the message names the pattern, or its line if it is from a file.
    """
    prefix = "".join(GitIgnoreSpecPattern.escape(os.fsdecode(component)) + "/" for component in folder)
    patterns = []
    for number, line in enumerate(lines, 1):
        if pattern := _anchor(line, prefix):
            _check_stars(line, f"line {number} of {file}" if file else f"the pattern {line!r}")
            patterns.append(pattern)
    of_files = [pattern for pattern in patterns if pattern.startswith("!") or not pattern.endswith("/")]
    return PathPatterns(_compile(of_files), _compile([pattern.removesuffix("/") for pattern in patterns]))


def parse_ignore_file(raw: bytes, folder: Sequence[bytes] = (), *, file: str) -> PathPatterns:
    """Parse the bytes of a .gitignore file in a folder."""
    lines = os.fsdecode(raw.removeprefix(BYTE_ORDER_MARK)).split("\n")
    patterns = ["" if line.startswith("#") else line.removesuffix("\r") for line in lines]
    return parse_patterns(patterns, folder, file=file)


def _check_stars(pattern: str, name: str) -> None:
    segments = pattern.rstrip(" ").removeprefix("!").strip("/").split("/")
    counts = [sum(not found[1] for found in _STARS.finditer(segment)) for segment in segments]
    if max(counts) > STARS_MAX:
        problem = f"more than {STARS_MAX} stars between two slashes"
    elif sum(max(count - 1, 0) for count in counts) + segments[1:-1].count("**") >= STARS_MAX:
        # Each is moderate, but their numbers of ways multiply.
        problem = "stars in too many places"
    else:
        return
    raise SourceInvalid(f"{name} has {problem}, which takes too long to match; write it more simply")


def _join_stars(segment: str) -> str:
    """A segment with one star in the place of several, which mean the same, unless they are the whole segment."""
    return segment if segment == "**" else _STARS.sub(lambda found: found[1] or "*", segment)


def _anchor(line: str, prefix: str) -> str:
    """A pattern that matches below the prefix what the line matches in its own folder; empty for no pattern."""
    text = line if line.endswith("\\ ") else line.rstrip(" ")
    negation, path = ("!", text[1:]) if text.startswith("!") else ("", text)
    if not path.strip("/") or len(os.fsencode(path)) > PATTERN_MAX_BYTES or POSIX_CLASS.search(path):
        return ""
    # Without a slash in it, a pattern matches names in all folders below.
    in_any_folder = "" if "/" in path[:-1] else "**/"
    path = "/".join(map(_join_stars, path.removeprefix("/").split("/")))
    return f"{negation}/{prefix}{in_any_folder}{path}"


def _compile(patterns: Iterable[str]) -> GitIgnoreSpec:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(GitIgnoreSpecPattern(pattern))
        except (ValueError, re.error):
            continue
    return GitIgnoreSpec([pattern for pattern in compiled if pattern.include is not None], backend=BACKEND)


def check_pattern(pattern: str) -> None:
    """Raise SourceInvalid for a pattern that can match no path: with an open bracket, or with `.` or `..` as a folder.

    A .gitignore file may have such a line, and a cache may remember one, but nobody gives one on purpose.
    """
    if not isinstance(pattern, str):
        raise SourceInvalid(f"a pattern is text, not {type(pattern).__name__}")
    has_dots = not {".", ".."}.isdisjoint(pattern.removeprefix("!").split("/"))
    if has_dots or (is_encodable(pattern) and not parse_patterns([pattern])):
        raise not_a_pattern(pattern)


class Chooser:
    """Decides by the options of a build which files are of a wanted kind."""

    def __init__(self, rules: DocumentRules) -> None:
        self._is_wanted_name = is_text_name if rules.kinds == ALL_TEXT else is_plain_markdown
        self._include = parse_patterns(rules.include)

    def is_wanted(self, components: Sequence[bytes]) -> bool:
        """Whether a file at this path is of a wanted kind, or included by a pattern."""
        return self._is_wanted_name(components[-1]) or self.is_included(components)

    def is_included(self, components: Sequence[bytes]) -> bool:
        """Whether a pattern of `include` matches the file or a folder that it is in."""
        if not self._include:
            return False
        folders = (components[:end] for end in range(1, len(components)))
        return self._include.match_file(components) or any(map(self._include.match_folder, folders))
