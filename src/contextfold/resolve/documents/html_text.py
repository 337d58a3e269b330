"""Converts an HTML page to text, with headings, lists and code as Markdown. Pure.

It does not use the standard library's parser for two reasons. The result of that parser for broken markup depends on
the version of Python, and a cache must not. Some versions need quadratic time for input such as many `<!--` in a row.
This parser reads every character a bounded number of times and never recurses.
"""

from __future__ import annotations

import re
from html.entities import html5

DROPPED = frozenset(("script", "style", "template", "noscript", "svg", "iframe", "object", "canvas", "nav", "select"))
RAW_TEXT = frozenset(("script", "style", "iframe", "noscript", "title", "textarea", "xmp"))
_BLOCK_NAMES = """
    address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure
    footer form header hgroup hr html legend main menu ol p search section summary table tbody tfoot thead tr ul
"""
BLOCKS = frozenset(_BLOCK_NAMES.split())
PREFIXES = {f"h{level}": "#" * level + " " for level in range(1, 7)} | {"li": "- "}
FENCE = "```"

_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_QUOTE_OR_END = re.compile(r"[\"'>]")
_ALT = re.compile(r"\balt\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_REFERENCE = re.compile(
    r"&(?:#([0-9]{1,7})(?![0-9]);?|#[xX]([0-9a-fA-F]{1,6})(?![0-9a-fA-F]);?|([a-zA-Z][a-zA-Z0-9]{1,31};))"
)
_SPACES = re.compile(r"[ \t\r\n\f]+")
_MARKER_AT_START = re.compile(r"^(#{1,6}(?=\s|$)|```|~~~)")
ALT_MAX_CHARACTERS = 500
REPLACEMENT = "\ufffd"
LAST_CODE_POINT = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)


def html_text(page: str) -> str:
    """The text of a page. If a <nav> is never closed, its content is part of the text."""
    reader = _PageReader(DROPPED)
    reader.read(page)
    if reader.dropping == "nav":
        reader = _PageReader(DROPPED - {"nav"})
        reader.read(page)
    return reader.text()


class _PageReader:
    """Reads one page.

    `dropping` is the name of the element whose content is being left out, `_depth` the number of open elements of that
    name. `_line` and `_prefix` are the text and the Markdown marker of the current block. `_missing_quotes` has the
    quotation marks that do not occur in the rest of the page.
    """

    def __init__(self, dropped: frozenset[str]) -> None:
        self._dropped = dropped
        self.dropping = ""
        self._depth = 0
        self._title = ""
        self._has_heading = False
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._preformatted = 0
        self._missing_quotes: set[str] = set()

    def read(self, page: str) -> None:
        at = 0
        while (tag := page.find("<", at)) >= 0:
            self._add_text(page[at:tag])
            at = self._markup(page, tag)
        self._add_text(page[at:])
        self._end_block()

    def _markup(self, page: str, at: int) -> int:
        """Process the markup that begins with `<`; return the position after it."""
        if page.startswith("<!--", at):
            return _end_of(page, "-->", at + 4)
        if page.startswith(("<!", "<?"), at):
            return _end_of(page, ">", at + 2)
        is_end = page.startswith("</", at)
        name = _NAME.match(page, at + 1 + is_end)
        if name is None:
            self._add_text("<")
            return at + 1
        tag = name.group().lower()
        if is_end:
            self._close(tag)
            return _end_of(page, ">", name.end())
        end = self._tag_end(page, name.end())
        if tag in RAW_TEXT and not self.dropping:
            return self._raw_text(page, tag, end)
        is_closed = page[end - 2 : end] == "/>"
        self._open(tag, page[name.end() : end] if tag == "img" else "", is_closed=is_closed)
        return end

    def _tag_end(self, page: str, at: int) -> int:
        """The position after the `>` of a start tag. A `>` in a quoted value does not count."""
        while match := _QUOTE_OR_END.search(page, at):
            at = match.end()
            quote = match.group()
            if quote == ">":
                return at
            if quote in self._missing_quotes or page[match.start() - 1] not in "= \t\r\n\f":
                continue
            closing = page.find(quote, at)
            if closing < 0:
                self._missing_quotes.add(quote)
            else:
                at = closing + 1
        return len(page)

    def _raw_text(self, page: str, tag: str, at: int) -> int:
        """Process an element whose content is plain text; return the position after it."""
        end = re.compile(f"</{tag}(?=[\\s/>])", re.IGNORECASE).search(page, at)
        content = page[at : end.start() if end else len(page)]
        if tag == "title":
            self._title = self._title or _squeezed(_unescaped(content))
        elif tag not in self._dropped:
            self._add_text(content)
        return _end_of(page, ">", end.end()) if end else len(page)

    def _open(self, tag: str, attributes: str, *, is_closed: bool) -> None:
        if self.dropping:
            self._depth += tag == self.dropping and not is_closed
        elif tag in self._dropped:
            if not is_closed or tag not in ("svg", "canvas"):
                self._end_block()
                self.dropping, self._depth = tag, 1
        elif tag in BLOCKS:
            self._end_block()
        elif tag in PREFIXES:
            self._end_block()
            self._prefix = PREFIXES[tag]
        elif tag == "pre":
            self._end_block()
            self._preformatted += 1
        else:
            self._open_inline(tag, attributes)

    def _open_inline(self, tag: str, attributes: str) -> None:
        if tag == "br":
            self._line.append("\n")
        elif tag in ("td", "th"):
            if any(part.strip() for part in self._line):
                self._line.append(" | ")
        elif tag == "img":
            alternative = _ALT.search(attributes[: ALT_MAX_CHARACTERS * 4])
            if alternative:
                self._add_text((alternative.group(1) or alternative.group(2) or "")[:ALT_MAX_CHARACTERS])

    def _close(self, tag: str) -> None:
        if self.dropping:
            if tag == self.dropping:
                self._depth -= 1
                if not self._depth:
                    self.dropping = ""
        elif tag == "pre":
            self._end_block()
            self._preformatted = max(0, self._preformatted - 1)
        elif tag in PREFIXES or tag in BLOCKS:
            self._end_block()

    def _add_text(self, text: str) -> None:
        if text and not self.dropping:
            self._line.append(_unescaped(text) if self._preformatted else _SPACES.sub(" ", _unescaped(text)))

    def _end_block(self) -> None:
        if not self._line:
            self._prefix = ""
            return
        text = "".join(self._line)
        self._line.clear()
        prefix, self._prefix = self._prefix, ""
        if self._preformatted:
            self._add_code(text)
            return
        lines = [_squeezed(line) for line in text.split("\n")]
        if prefix.startswith("#"):
            lines = [" ".join(line for line in lines if line)]
            self._has_heading = self._has_heading or bool(lines[0])
        else:
            lines = [_MARKER_AT_START.sub(r"\\\1", line) for line in lines]
        if block := "\n".join(line for line in lines if line):
            self._blocks.append(prefix + block)

    def _add_code(self, text: str) -> None:
        code = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        if code.strip():
            longest = max((len(run) for run in re.findall("`+", code)), default=0)
            fence = "`" * max(len(FENCE), longest + 1)
            self._blocks.append(f"{fence}\n{code}\n{fence}")

    def text(self) -> str:
        title = [f"# {self._title}"] if self._title and not self._has_heading else []
        blocks = [*title, *self._blocks]
        parts: list[str] = []
        for before, block in zip(["", *blocks], blocks, strict=False):
            if parts:
                parts.append("\n" if before.startswith("- ") and block.startswith("- ") else "\n\n")
            parts.append(block)
        return "".join(parts) + "\n" if parts else ""


def _end_of(page: str, mark: str, at: int) -> int:
    """The position after the next occurrence of `mark`, or the end of the page."""
    start = page.find(mark, at)
    return len(page) if start < 0 else start + len(mark)


def _squeezed(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


def _unescaped(text: str) -> str:
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    decimal, hexadecimal, name = reference.groups()
    if name:
        return html5.get(name, reference.group())
    number = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(number) if number and number <= LAST_CODE_POINT and number not in SURROGATES else REPLACEMENT
