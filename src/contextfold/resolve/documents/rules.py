"""The options that choose the documents of a build, and their form in the manifest. Pure.

A file is a document if its kind is wanted or a pattern of `include` matches it, and neither a .gitignore file nor a
pattern of `exclude` excludes it. Both lists have the syntax of a .gitignore file. `exclude` is applied after the
.gitignore files, so a pattern with `!` can override them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contextfold.common.canonical import Encodable
from contextfold.errors import SourceInvalid

# The kinds of documents: `.md` files only, or every known kind of text.
MARKDOWN_ONLY = "markdown"
ALL_TEXT = "text"
PATTERNS_MAX = 10_000
# No system accepts a path that a longer pattern could match.
PATTERN_MAX_BYTES = 4096


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
