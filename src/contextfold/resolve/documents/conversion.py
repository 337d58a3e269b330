"""Converts the bytes of a source file to the text of its document. Pure.

HTML pages and notebooks are converted to text; any other file is stored unchanged. A cache records the version of the
conversion, because a later version may produce another text from the same bytes.
"""

from __future__ import annotations

from contextfold.common.canonical import Malformed
from contextfold.resolve.documents.html_text import html_text
from contextfold.resolve.documents.kinds import HTML, NO_NOTEBOOK, NOT_UTF_8, NOTEBOOK, suffix_of
from contextfold.resolve.documents.notebook_text import notebook_text

CONVERSION_VERSION = 1


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
