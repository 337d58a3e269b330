"""Splits a document into sections: at its headings, and a long section at blank lines. Pure.

Knows the headings of Markdown, reStructuredText, AsciiDoc, Org and HTML, and in source code top-level definitions and
the members of classes.
Every step takes time linear in the length of the text: no pattern matches more than two lines, and no step goes back
beyond the previous heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

# A section with more characters is split at blank lines.
LONG_SECTION = 1600
# A piece without blank lines is split after this many characters, at the end of a line or within a line.
HARD_SECTION = 8 * LONG_SECTION
# A heading is cut after this many characters.
HEADING_MAX = 200
# The number of levels of headings.
DEEPEST = 6

BYTE_ORDER_MARK = "\ufeff"
# A blank line after the first one shows that it is a rule between paragraphs.
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(?![ \t]*\r?\n)(?:[^\n]*\n)*?---[ \t]*(?:\r?\n|$)")
_FRONT_TITLE = re.compile(r"^title[ \t]*:[ \t]*(.*)$", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t\r]*(?=\n)")

_MARKDOWN_LINES = (
    r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)"
    r"| {0,3}(?P<hashes>\#{1,6})(?:[ \t]+(?P<atx>[^\n]*))?"
    r"|[ \t]{0,3}<[hH](?P<tag>[1-6])[^>\n]{0,200}>(?P<html>[^\n]*)"
    r"| {0,3}<(?P<block>!--|(?i:pre|script|style|textarea)(?=[\s>]))[^\n]*"
)
# Neither list items, fences nor definitions of links.
_NO_SETEXT = r"[*+]+[ \t\r\n*+]|`{3}|\[[^\]\n]{1,200}\]:"
_SETEXT = rf"(?P<setext>(?!{_NO_SETEXT})[^\s\#>|~\-=<:!][^\n]{{0,200}})\n {{0,3}}(?P<underline>=+|-{{2,}})[ \t\r]*"
# Few pages have an underlined heading, and a search without them is twice as fast.
_UNDERLINE = re.compile(r"\n {0,3}(?:=+|-{2,})[ \t\r]*$", re.MULTILINE)
_MARKDOWN = re.compile(f"^(?:{_MARKDOWN_LINES})$", re.MULTILINE)
_MARKDOWN_WITH_SETEXT = re.compile(f"^(?:{_MARKDOWN_LINES}|{_SETEXT})$", re.MULTILINE)
_ASCIIDOC_LINES = r"(?P<fence>-{4,}|\.{4,}|/{4,}|`{3,})(?P<info>[^\n]*)|(?P<hashes>={1,6}|\#{1,6})[ \t]+(?P<atx>[^\n]*)"
# The title stands above a line of about its length. A line of dashes of another length opens a listing.
_ASCIIDOC_TITLE = (
    r"(?P<setext>[^\s=\-.`~^+/|*\[][^\n]{0,200})(?=\n(?P<underline>={4,}|-{4,}|~{4,}|\^{4,}|\+{4,})[ \t\r]*$)"
)
_ASCIIDOC = re.compile(f"^(?:{_ASCIIDOC_LINES}|{_ASCIIDOC_TITLE})$", re.MULTILINE)
_TITLE_LINE_SLACK = 2
_UNDERLINE_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4, "+": 5}
_ORG = re.compile(
    r"^(?:[ \t]*\#\+(?P<block>begin|end)_[^ \t\r\n]+[^\n]*|(?P<hashes>\*+)[ \t]+(?P<atx>[^\n]*)"
    r"|\#\+title:[ \t]*(?P<title>[^\n]*))$",
    re.MULTILINE | re.IGNORECASE,
)
_RST_RULE = r"(?P<%s>=+|-+|~+|`+|'+|\"+|\^+|\*+|\++|\#+|<+|>+|:+|\.+|_+)[ \t\r]*"
_RST = re.compile(
    rf"^(?:(?:{_RST_RULE % 'over'}\n)?(?P<name>[^\n]{{1,{2 * HEADING_MAX}}})\n{_RST_RULE % 'under'})$",
    re.MULTILINE,
)
_RST_SIGN = re.compile(
    r"^(?:\.\. [\w-]+::|\.\. _[^\n]{1,200}:[ \t\r]*$|[^\s][^\n]{2,200}\n[=~^*#\"]{4,}[ \t\r]*$)", re.MULTILINE
)
_HASH_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_HTML_TAG = re.compile(r"<[^<>\n]{1,400}>")
_HTML_CLOSE = re.compile(r"</[hH][1-6]>")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,400})\](?:\([^()\n]{0,400}\)|\[[^\[\]\n]{0,400}\])")
_ANCHOR = re.compile(r"[ \t]*\{\#[^{}\n]*\}[ \t]*$")
_CLOSING_HASHES = re.compile(r"(?:^|[ \t])\#+$")
_EMPHASIS = re.compile(r"(?<![\w*])\*([^*\n]{1,400})\*(?![\w*])")
_SPACES = re.compile(r"\s+")

# A shorter rule must be as long as the heading above it.
RST_RULE_LEAST = 4


class Section(NamedTuple):
    """A part of a document: its headings and its position. Offsets count characters, lines count from 1."""

    headings: tuple[str, ...]
    start: int
    end: int
    first_line: int


class Outline(NamedTuple):
    title: str
    sections: list[Section]


class _Mark(NamedTuple):
    """A heading at the start of a line."""

    at: int
    level: int
    text: str


def outline(path: str, text: str) -> Outline:
    """The title and the sections of a document. There are no gaps between the sections."""
    extension = path.rpartition("/")[2].rpartition(".")[2].lower()
    title, body_at = _front_matter(text)
    # A heading in the first line begins the line without the byte order mark.
    has_mark = text.startswith(BYTE_ORDER_MARK)
    marks, breaks, title_in_text = _marks(extension, "\n" + text[1:] if has_mark else text, body_at)
    if has_mark and marks and marks[0].at == 1:
        marks[0] = marks[0]._replace(at=0)
    if definition_pattern(extension) is not None:
        title = path
    title = title or title_in_text or _first_heading(marks)
    return Outline(title[:HEADING_MAX], list(_sections(text, marks, breaks)))


def _front_matter(text: str) -> tuple[str, int]:
    """The title in the front matter, and the position of the text after it."""
    found = _FRONT_MATTER.match(text)
    if not found:
        return "", 0
    title = _FRONT_TITLE.search(found[0])
    return (clean_heading(title[1].strip().strip("\"'")) if title else ""), found.end()


def _first_heading(marks: list[_Mark]) -> str:
    """The document's only heading of the top level, or its first heading."""
    return next((mark.text for mark in marks if mark.level == 1), marks[0].text if marks else "")


def _marks(extension: str, text: str, start: int) -> tuple[list[_Mark], list[tuple[int, int]], str]:
    """The headings, the fenced ranges that are not split at blank lines, and a title outside of headings."""
    code = definition_pattern(extension)
    if code is not None:
        return _code_marks(text, start, code, member_pattern(extension)), [], ""
    if extension in ("rst", "rest") or (extension == "txt" and _looks_like_rst(text)):
        return _rst_marks(text, start), [], ""
    if extension == "org":
        return _org_marks(text, start)
    if extension in ("adoc", "asciidoc", "asc"):
        return _fenced_marks(_ASCIIDOC, text, start)
    return _fenced_marks(_MARKDOWN_WITH_SETEXT if _UNDERLINE.search(text, start) else _MARKDOWN, text, start)


def _fenced_marks(pattern: re.Pattern[str], text: str, start: int) -> tuple[list[_Mark], list[tuple[int, int]], str]:
    marks: list[_Mark] = []
    fences: list[tuple[int, int]] = []
    fence, opened_at, underline_at, block_end = "", 0, -1, 0
    unclosed: set[str] = set()
    for found in pattern.finditer(text, start):
        if found.start() < block_end:
            continue
        run = found["fence"]
        if run and found.start() != underline_at:
            if not fence and not (run[0] == "`" and "`" in found["info"]):
                fence, opened_at = run, found.start()
            elif fence and run.startswith(fence) and not found["info"].strip():
                fences.append((opened_at, found.end()))
                fence = ""
        elif not fence and (block_end := _html_block_end(text, found, unclosed)):
            fences.append((found.start(), block_end))
        elif not fence and (mark := _mark(found)):
            marks.append(mark)
            if pattern is _ASCIIDOC:
                # The line under a title looks like the opening of a listing.
                underline_at = found.start("underline")
    if fence:
        fences.append((opened_at, len(text)))
    return marks, fences, ""


def _html_block_end(text: str, found: re.Match[str], unclosed: set[str]) -> int:
    """The end of the HTML comment or the element like `pre` that a line opens, whose lines are no headings.

    It is 0 if the line opens none, or one that is never closed. `unclosed` has the kinds that are not closed any more:
    the text is searched once for each.
    """
    block = found.groupdict().get("block")
    if not block or block in unclosed:
        return 0
    closing = "-->" if block == "!--" else f"</{block}>"
    at = text.find(closing, found.start())
    if at < 0:
        unclosed.add(block)
        return 0
    return at + len(closing)


def _mark(found: re.Match[str]) -> _Mark | None:
    if hashes := found["hashes"]:
        heading = _CLOSING_HASHES.sub("", (found["atx"] or "").strip())
        return _Mark(found.start(), len(hashes), clean_heading(heading))
    groups = found.groupdict()
    if groups.get("underline"):
        title, underline = groups["setext"].rstrip(), groups["underline"]
        if found.re is _ASCIIDOC and abs(len(title) - len(underline)) > _TITLE_LINE_SLACK:
            return None
        return _Mark(found.start(), _UNDERLINE_LEVELS[underline[0]], clean_heading(title))
    if groups.get("tag"):
        heading = _HTML_CLOSE.split(groups["html"])[0]
        return _Mark(found.start(), int(groups["tag"]), clean_heading(heading))
    return None


def _looks_like_rst(text: str) -> bool:
    """Whether a text has underlined headings or directives, and no headings with `#`."""
    return bool(_RST_SIGN.search(text)) and not _HASH_HEADING.search(text)


def _rst_marks(text: str, start: int) -> list[_Mark]:
    marks: list[_Mark] = []
    levels: dict[tuple[bool, str], int] = {}
    for found in _RST.finditer(text, start):
        name, under, over = found["name"].strip(), found["under"], found["over"]
        if (
            not name
            or len(under) < min(len(name), RST_RULE_LEAST)
            or (over and over[0] != under[0])
            or set(name) <= {under[0]}
            or (not over and found["name"][0] in " \t")
        ):
            continue
        level = levels.setdefault((bool(over), under[0]), len(levels) + 1)
        marks.append(_Mark(found.start(), level, clean_heading(name)))
    return marks


def _org_marks(text: str, start: int) -> tuple[list[_Mark], list[tuple[int, int]], str]:
    marks: list[_Mark] = []
    blocks: list[tuple[int, int]] = []
    title, opened_at = "", -1
    for found in _ORG.finditer(text, start):
        if found["block"]:
            begins = found["block"].lower() == "begin"
            if begins and opened_at < 0:
                opened_at = found.start()
            elif not begins and opened_at >= 0:
                blocks.append((opened_at, found.end()))
                opened_at = -1
        elif opened_at < 0 and found["hashes"]:
            marks.append(_Mark(found.start(), len(found["hashes"]), clean_heading(found["atx"])))
        elif opened_at < 0:
            title = title or clean_heading(found["title"] or "")
    if opened_at >= 0:
        blocks.append((opened_at, len(text)))
    return marks, blocks, title


def _code_marks(text: str, start: int, pattern: re.Pattern[str], members: re.Pattern[str] | None) -> list[_Mark]:
    """The definitions at the beginning of a line, and below classes their members."""
    marks: list[_Mark] = []
    floor = start
    definitions = list(pattern.finditer(text, start))
    for number, found in enumerate(definitions, 1):
        end = definitions[number].start() if number < len(definitions) else len(text)
        heading = heading_of_definition(found[0])[:HEADING_MAX]
        marks.append(_Mark(_with_comment_above(text, found.start(), floor, ""), 1, heading))
        floor = found.end()
        if members is not None and _HAS_MEMBERS.search(heading):
            for member in _members(text, floor, end, members):
                at = _with_comment_above(text, member.start(), floor, member["indentation"])
                marks.append(_Mark(at, 2, heading_of_definition(member["member"])[:HEADING_MAX]))
                floor = member.end()
    return marks


def _members(text: str, start: int, end: int, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """The members of a class: all definitions that are indented as the first one."""
    indentation = None
    for found in pattern.finditer(text, start, end):
        indentation = found["indentation"] if indentation is None else indentation
        if found["indentation"] == indentation:
            yield found


_COMMENT_STARTS = ("//", "/*", " *", "*", "#", "@", "--", ";", "///", '"""', "%")


def _with_comment_above(text: str, at: int, floor: int, indentation: str) -> int:
    """The position of the comment or the decorators directly above a definition. No line is read twice."""
    starts = tuple(indentation + start for start in _COMMENT_STARTS)
    while at > floor:
        line_at = text.rfind("\n", floor, at - 1) + 1
        is_first_line = not line_at and not floor
        if (line_at <= floor and not is_first_line) or not text.startswith(starts, line_at):
            return at
        at = line_at
    return at


def clean_heading(heading: str) -> str:
    """Remove links, tags, anchors and code marks from a heading."""
    heading = heading[: 2 * HEADING_MAX]
    if "{" in heading:
        heading = _ANCHOR.sub("", heading)
    if "[" in heading:
        heading = _LINK.sub(r"\1", heading)
    if "<" in heading:
        heading = _HTML_TAG.sub("", heading) or heading
    if "*" in heading:
        heading = _EMPHASIS.sub(r"\1", heading.replace("**", ""))
    heading = heading.replace("`", "")
    return _SPACES.sub(" ", heading).strip()[:HEADING_MAX]


def _sections(text: str, marks: list[_Mark], fences: list[tuple[int, int]]) -> Iterator[Section]:
    line = 1
    fence_number = 0
    for start, end, headings in _ranges(text, marks):
        while fence_number < len(fences) and fences[fence_number][1] <= start:
            fence_number += 1
        pieces = [(start, end)]
        if end - start > LONG_SECTION:
            pieces = list(_pieces(text, start, end, fences, fence_number))
        for piece_start, piece_end in pieces:
            yield Section(headings, piece_start, piece_end, line)
            line += text.count("\n", piece_start, piece_end)


def _ranges(text: str, marks: list[_Mark]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """The ranges between headings. A heading that is directly followed by a heading below it is part of that range."""
    crumbs: list[tuple[int, str]] = []
    start = 0
    headings: tuple[str, ...] = ()
    for number, mark in enumerate(marks):
        alone = number and _is_heading_alone(text, marks[number - 1], start, mark)
        if mark.at > start and not alone and text[start : mark.at].strip():
            yield start, mark.at, headings
            start = mark.at
        while crumbs and crumbs[-1][0] >= mark.level:
            crumbs.pop()
        crumbs.append((mark.level, mark.text))
        headings = tuple(name for _, name in crumbs[-DEEPEST:])
    if start < len(text):
        yield start, len(text), headings


def _is_heading_alone(text: str, previous: _Mark, start: int, mark: _Mark) -> bool:
    """Whether there is only the previous heading, a parent of this one, before this heading."""
    if previous.level >= mark.level or mark.at - previous.at > 3 * HEADING_MAX or start != previous.at:
        return False
    lines = text[previous.at : mark.at].split("\n")
    return sum(1 for line in lines if line.strip()) == 1


def _pieces(
    text: str, start: int, end: int, fences: list[tuple[int, int]], fence_number: int
) -> Iterator[tuple[int, int]]:
    """Split a long range at blank lines into pieces of about LONG_SECTION characters.

    A blank line in a fence is used only if the piece would be longer than twice that, and has none outside of a fence.
    """
    piece_at = outside = inside = start
    after_blanks = [blank.end() + 1 for blank in _BLANK.finditer(text, start, end)]
    for at in [*(at for at in after_blanks if at < end), end]:
        while fence_number < len(fences) and fences[fence_number][1] <= at:
            fence_number += 1
        in_fence = at < end and fence_number < len(fences) and fences[fence_number][0] < at
        cut = piece_at
        if at - piece_at > (2 * LONG_SECTION if in_fence else LONG_SECTION) and outside > piece_at:
            cut = outside
        elif in_fence and at - piece_at > 2 * LONG_SECTION:
            cut = inside
        if cut > piece_at:
            yield from _hard_pieces(text, piece_at, cut)
            piece_at = cut
        if in_fence:
            inside = at
        else:
            outside = at
    yield from _hard_pieces(text, piece_at, end)


def _hard_pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > HARD_SECTION:
        limit = start + HARD_SECTION
        cut = text.rfind("\n", start + LONG_SECTION, limit) + 1
        if not cut:
            cut = text.rfind(" ", start + LONG_SECTION, limit) + 1 or limit
        yield start, cut
        start = cut
    yield start, end


# The lines of source code that begin a top-level definition. What a pattern matches is the heading of the section, so
# each ends with the name. `\w` in them means an ASCII word character or any character beyond ASCII: every Python must
# find the same names, and their tables of Unicode differ.
_WORD = r"0-9A-Za-z_\x80-\U0010ffff"
# The pattern of a language, by the extensions of its files.
_PATTERNS = {
    "py pyi pyx": r"(?:async[ ]+def|def|class)[ ]+\w+",
    "js mjs cjs jsx ts mts cts tsx vue svelte": (
        r"(?:export[ ]+)?(?:default[ ]+)?(?:declare[ ]+)?(?:abstract[ ]+)?(?:async[ ]+)?"
        r"(?:function\*?|class|interface|type|enum|namespace|module|const|let|var)[ ]+[\w$]+"
    ),
    "go": r"func[ ]+(?:\([^)\n]{0,200}\)[ ]*)?\w+|(?:type|var|const)[ ]+(?:\w+|\()",
    "rs": (
        r"(?:pub(?:\([^)\n]{0,200}\))?[ ]+)?"
        r"(?:(?:async|unsafe|default|extern[ ]+\"[^\"\n]{0,40}\")[ ]+|const[ ]+(?=(?:async|unsafe|extern|fn)\b))*"
        r"(?:(?:fn|struct|enum|union|trait|mod|type|static(?:[ ]+mut)?|const|macro_rules!)[ ]+\w+|impl\b[^\n{]{0,200})"
    ),
    "java kt kts scala cs swift groovy dart": (
        r"(?:(?:public|private|protected|internal|static|final|abstract|sealed|open|data|case|override|partial"
        r"|readonly|async|extern|unsafe|implicit|inline|export)[ ]+)*"
        r"(?:class|interface|enum|record|struct|object|trait|fun|def|namespace|extension|protocol|func|delegate"
        r"|@interface)[ ]+\w+"
    ),
    "c h cc cpp cxx hh hpp hxx m mm cu": (
        r"(?:struct|class|enum|union|namespace|template|typedef|#define)\b[^\n;]*"
        r"|[A-Za-z_][\w \t*&:<>,~]{0,200}\([^;\n]{0,400}$"
    ),
    "rb": r"(?:def|class|module)[ ]+\w+(?:(?:\.|::)\w+)*[?!]?",
    "php": r"(?:(?:abstract|final|readonly)[ ]+)*(?:function|class|interface|trait|enum|namespace)[ ]+\w+",
    "sh bash zsh": r"function[ ]+[\w-]+|[\w-]+[ ]*\(\)",
    "sql": r"(?i:create|alter|insert|drop)\b[^\n;]{0,200}",
    "lua": r"(?:local[ ]+)?function[ ]+[\w.:]+",
    "ex exs": r"(?:defmodule|defprotocol|defimpl)[ ]+[\w.]+",
    "hs": r"(?:data|newtype|type|class|instance|module)[ ]+[\w.]+|\w+[ ]+::",
    "pl pm": r"(?:sub|package)[ ]+[\w:]+",
    "r": r"[\w.]+[ ]*(?:<-|=)[ ]*function\b",
    "jl": r"(?:function|struct|mutable struct|abstract type|module|macro)[ ]+[\w.!]+",
    "proto": r"(?:message|enum|service|extend)[ ]+\w+",
    "css scss less": r"[^\s@/{}][^\n{}]{0,200}\{",
    "clj cljs cljc": r"\((?:def\w*|ns)[ ]+[^\s)]+",
    # Nothing is a definition. Lines with `#` are comments there, not headings.
    (
        "ada adb ads asm awk bat bzl cfg cmake conf cr d el elm env erl f f90 fish fs fsx gleam gradle graphql hcl hrl "
        "idr ini lisp ml mli nim nix pas properties ps1 rkt s sass scm service sol tcl thrift toml v vb vhd vhdl vim "
        "wgsl yaml yml zig dockerfile gemfile justfile makefile procfile rakefile vagrantfile"
    ): r"(?!)",
    "tf": r"(?:resource|data|variable|output|module|provider|locals|terraform)\b[^\n{]{0,200}",
}
# The lines that begin a member of a class, by the extensions of the language's files. They are indented.
_NO_CALL = r"(?!(?:await|case|catch|do|else|for|if|new|return|super|switch|throw|try|typeof|using|while|yield)\b)"
_MEMBERS = {
    "py pyi pyx": r"(?:async[ ]+def|def|class)[ ]+\w+",
    "js mjs cjs jsx ts mts cts tsx vue svelte": (
        r"(?:(?:public|private|protected|static|abstract|override|readonly|async|get|set)[ ]+)*"
        rf"\*?#?{_NO_CALL}[\w$]+(?=\??(?:<[^\n(]{{0,200}}>)?\([^;\n]*$)"
    ),
    "rs": (
        r"(?:pub(?:\([^)\n]{0,200}\))?[ ]+)?(?:(?:async|const|unsafe|default|extern[ ]+\"[^\"\n]{0,40}\")[ ]+)*"
        r"fn[ ]+\w+"
    ),
    "java kt kts scala cs swift groovy dart": (
        rf"{_NO_CALL}(?:[\w<>\[\],.?@]{{1,80}}[ ]+){{0,8}}"
        r"(?:(?:class|interface|enum|record|struct|object|fun|def|func)[ ]+\w+|\w+(?=\([^;\n]*$))"
    ),
    "rb": r"(?:def|class|module)[ ]+\w+(?:(?:\.|::)\w+)*[?!]?",
    "php": r"(?:(?:public|private|protected|static|abstract|final)[ ]+)*function[ ]+&?\w+",
}
_HAS_MEMBERS = re.compile(
    r"\b(?:class|interface|trait|impl|object|module|enum|struct|extension|protocol|record|mod|namespace)\b", re.ASCII
)
_MEMBERS_BY_EXTENSION = {
    extension: pattern for extensions, pattern in _MEMBERS.items() for extension in extensions.split()
}
_BY_EXTENSION = {extension: pattern for extensions, pattern in _PATTERNS.items() for extension in extensions.split()}


def definition_pattern(extension: str) -> re.Pattern[str] | None:
    """The pattern for the beginning of a definition; None for files that are not source code.

    A file without an extension is given by its name.
    """
    pattern = _BY_EXTENSION.get(extension)
    return _compile(pattern) if pattern else None


def member_pattern(extension: str) -> re.Pattern[str] | None:
    """The pattern for the beginning of a member of a class; None if such files have none that are sections."""
    pattern = _MEMBERS_BY_EXTENSION.get(extension)
    return _compile(pattern, r"(?P<indentation>[ \t]+)") if pattern else None


@cache
def _compile(pattern: str, before: str = "") -> re.Pattern[str]:
    # Inside brackets, and alone.
    pattern = pattern.replace(r"[\w", rf"[{_WORD}").replace(r"\w", f"[{_WORD}]")
    return re.compile(f"^{before}(?P<member>{pattern})", re.MULTILINE | re.ASCII)


def heading_of_definition(opening: str) -> str:
    """The definition's name with its keywords, on one line."""
    return " ".join(opening.split()).rstrip("{(=: ")
