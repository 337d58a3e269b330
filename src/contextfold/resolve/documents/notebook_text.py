"""Converts a Jupyter notebook to text: prose unchanged, code in fences, outputs up to a limit. Pure.

It reads the formats 3 and 4. Images and other outputs that are not plain text are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from contextfold.common.canonical import Malformed, decode

# The output of one cell is cut after this many characters.
OUTPUT_MAX_CHARACTERS = 2000
HEADING_LEVELS = range(1, 7)
FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_-]{1,20}")
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


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
            yield _fenced(text, language)
        if output := "\n".join(_outputs(cell)).strip("\n"):
            cut = output[:OUTPUT_MAX_CHARACTERS]
            yield _fenced(cut if cut == output else cut + "\n…", "")
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


def _fenced(text: str, language: str) -> str:
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
