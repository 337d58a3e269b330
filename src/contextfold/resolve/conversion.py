"""Converts the bytes of a source file to the text of its document. Pure.

HTML pages and notebooks are converted to text; any other file is stored unchanged. A cache records the version of the
conversion, because a later version may produce another text from the same bytes.

A page becomes text with headings, lists and code as Markdown. The standard library's parser is not used for two
reasons. Its result for broken markup depends on the version of Python, and a cache must not. Some versions need
quadratic time for input such as many `<!--` in a row. This parser reads every character a bounded number of times and
never recurses.

A notebook of format 3 or 4 becomes its prose unchanged, its code in fences and its outputs up to a limit. Images and
other outputs that are not plain text are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import html5

from contextfold.common.canonical import Malformed, decode
from contextfold.resolve.kinds import HTML, NO_NOTEBOOK, NOT_UTF_8, NOTEBOOK, suffix_of

CONVERSION_VERSION = 1

# HTML.
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

# Notebooks.
# The output of one cell is cut after this many characters.
OUTPUT_MAX_CHARACTERS = 2000
HEADING_LEVELS = range(1, 7)
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_-]{1,20}")
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


class NotText(Exception):
    """The file cannot become a document. `why` is the reason for statistics; the message tells how to repair it."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


def is_converted(name: bytes) -> bool:
    """Whether a file of this name is converted."""
    suffix = suffix_of(name)
    return suffix in HTML or suffix in NOTEBOOK


def text_of(name: bytes, raw: bytes) -> bytes:
    """The text of a file, as UTF-8. Raises NotText if it has none."""
    if suffix_of(name) in NOTEBOOK:
        try:
            return notebook_text(raw).encode()
        except Malformed as problem:
            raise NotText(NO_NOTEBOOK, f"{problem}; repair the notebook, or exclude it") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise NotText(
            NOT_UTF_8, f"not UTF-8 at byte {problem.start}; convert the file, or move it out of the sources"
        ) from None
    if suffix_of(name) in HTML:
        return html_text(text.removeprefix("\ufeff")).encode()
    return raw


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
            self._title = self._title or _squeeze_spaces(_unescape(content))
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
            self._line.append(_unescape(text) if self._preformatted else _SPACES.sub(" ", _unescape(text)))

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
        lines = [_squeeze_spaces(line) for line in text.split("\n")]
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


def _squeeze_spaces(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


def _unescape(text: str) -> str:
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    decimal, hexadecimal, name = reference.groups()
    if name:
        return html5.get(name, reference.group())
    number = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(number) if number and number <= LAST_CODE_POINT and number not in SURROGATES else REPLACEMENT


def notebook_text(raw: bytes) -> str:
    """Convert a notebook to text. Raises Malformed if it is not a notebook."""
    notebook = decode(raw)
    if not isinstance(notebook, dict):
        raise Malformed("is not a notebook: not an object")
    cells = notebook.get("cells")
    if cells is None:
        # Format 3 has the cells in worksheets.
        sheets = notebook.get("worksheets")
        cells = [cell for sheet in _dicts(sheets) for cell in _dicts(sheet.get("cells"))] if sheets else None
    if not isinstance(cells, list):
        raise Malformed("is not a notebook: it has no cells")
    language = _language(notebook)
    blocks = [block for cell in _dicts(cells) for block in _blocks(cell, language)]
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _blocks(cell: dict[str, object], language: str) -> Iterator[str]:
    kind = cell.get("cell_type")
    text = _text(cell.get("source", cell.get("input"))).strip("\n")
    if kind == "code":
        if text.strip():
            yield _fence(text, language)
        if output := "\n".join(_outputs(cell)).strip("\n"):
            cut = output[:OUTPUT_MAX_CHARACTERS]
            yield _fence(cut if cut == output else cut + "\n…", "")
    elif kind == "heading" and text.strip():
        # Only format 3 has such cells.
        level = cell.get("level")
        marks = level if isinstance(level, int) and level in HEADING_LEVELS else 1
        yield "#" * marks + " " + " ".join(text.split())
    elif text.strip():
        yield text


def _outputs(cell: dict[str, object]) -> Iterator[str]:
    for output in _dicts(cell.get("outputs")):
        kind = output.get("output_type")
        if kind == "stream":
            yield _COLOURS.sub("", _text(output.get("text")))
        elif kind in ("error", "pyerr"):
            yield f"{_text(output.get('ename'))}: {_COLOURS.sub('', _text(output.get('evalue')))}"
        else:
            data = output.get("data", output)
            if isinstance(data, dict) and not any(name.startswith("image/") for name in data):
                yield _text(data.get("text/plain", data.get("text")))


def _language(notebook: dict[str, object]) -> str:
    metadata = notebook.get("metadata")
    if isinstance(metadata, dict):
        for member, name in (("language_info", "name"), ("kernelspec", "language")):
            value = metadata.get(member)
            language = value.get(name) if isinstance(value, dict) else None
            if isinstance(language, str) and _LANGUAGE.fullmatch(language):
                return language
    return ""


def _fence(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(len(FENCE), longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _text(value: object) -> str:
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _dicts(value: object) -> Iterator[dict[str, object]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield item
