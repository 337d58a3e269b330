"""The options that choose the documents of a build, their form in the manifest, and patterns of paths. Pure.

A file is a document if its kind is wanted or a pattern of `include` matches it, and neither a .gitignore file nor a
pattern of `exclude` excludes it. Both lists have the syntax of a .gitignore file. `exclude` is applied after the
.gitignore files, so a pattern with `!` can override them.

`pathspec` compiles and compares the patterns. Here they are written so that one list holds those of several folders,
and so that a folder can be asked about before it is entered: nothing below an excluded folder can be taken again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from contextfold.common.canonical import Encodable
from contextfold.errors import SourceInvalid
from contextfold.resolve.kinds import ALL_TEXT, MARKDOWN_ONLY, is_plain_markdown, is_text_name

PATTERNS_MAX = 10_000
# No system accepts a path that a longer pattern could match.
PATTERN_MAX_BYTES = 4096

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The backend in pure Python gives the same result on every machine, whatever else is installed there.
BACKEND = "simple"
# `pathspec` does not know the classes of POSIX, such as [:alpha:], and would take them for other brackets.
POSIX_CLASS = re.compile(r"\[:\w*:\]")
# A pattern becomes a regular expression, which may try every way to divide a name among the stars of a segment, and
# every way to divide a path among segments that are `**`. More of them than this would take too long.
STARS_MAX = 4
_STARS = re.compile(r"(\\.)|\*+")


class DocumentRules(NamedTuple):
    kinds: str = MARKDOWN_ONLY
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gitignore: bool = False

    @property
    def is_lenient(self) -> bool:
        """Whether a file that cannot be read as text is left out and counted, instead of failing the build."""
        return self.kinds == ALL_TEXT

    def as_words(self) -> list[str]:
        """The options of `context build` that choose these rules, as words of a command line; none for its defaults."""
        words = [word for pattern in self.include for word in ("--include", pattern)]
        words += [word for pattern in self.exclude for word in ("--exclude", pattern)]
        return [*words, "--gitignore"] if self.gitignore and not self.is_lenient else words

    def to_options(self) -> dict[str, Encodable] | None:
        """The `build_options` of the manifest; None for the rules of the first version, which has no such member."""
        if self == PLAIN_MARKDOWN:
            return None
        return self._asdict() | {"include": list(self.include), "exclude": list(self.exclude)}


PLAIN_MARKDOWN = DocumentRules()


def make_rules(
    kinds: str, *, include: Sequence[str] = (), exclude: Sequence[str] = (), gitignore: bool | None = None
) -> DocumentRules:
    """Make rules from options. Raises SourceInvalid if a pattern is invalid."""
    if kinds not in (MARKDOWN_ONLY, ALL_TEXT):
        raise SourceInvalid(f"there is no kind of documents {kinds!r}; give {MARKDOWN_ONLY!r} or {ALL_TEXT!r}")
    if len(include) + len(exclude) > PATTERNS_MAX:
        raise SourceInvalid(f"there are more than {PATTERNS_MAX:,} patterns; write them into a .gitignore file")
    for pattern in (*include, *exclude):
        if not pattern.strip(" !/") or "\n" in pattern or "\0" in pattern or not is_encodable(pattern):
            raise not_a_pattern(pattern)
        if len(pattern.encode()) > PATTERN_MAX_BYTES:
            raise SourceInvalid(f"a pattern of more than {PATTERN_MAX_BYTES:,} bytes matches no path; shorten it")
    wanted = kinds == ALL_TEXT if gitignore is None else gitignore
    return DocumentRules(kinds, tuple(include), tuple(exclude), wanted)


def not_a_pattern(pattern: str) -> SourceInvalid:
    return SourceInvalid(
        f"{pattern!r} is not a pattern that a path below the folder can match; "
        "give one such as '*.rst', 'drafts/' or 'api/**/*.html'"
    )


def is_encodable(pattern: str) -> bool:
    try:
        pattern.encode()
    except UnicodeEncodeError:
        return False
    return True


def rules_in(options: object) -> DocumentRules | None:
    """Decode the `build_options` of a manifest; None if they are invalid."""
    if options is None:
        return PLAIN_MARKDOWN
    if not isinstance(options, Mapping):
        return None
    kinds, include, exclude, gitignore = map(options.get, DocumentRules._fields)
    if not (isinstance(include, list) and isinstance(exclude, list)):
        return None
    are_texts = all(isinstance(value, str) for value in (kinds, *include, *exclude))
    if not (are_texts and isinstance(gitignore, bool)):
        return None
    try:
        return make_rules(str(kinds), include=include, exclude=exclude, gitignore=gitignore)
    except SourceInvalid:
        return None


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
