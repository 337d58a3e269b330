"""Formats lines and tables: with colours on a terminal, as plain text in a pipe.

All text passes through `escape` here, so that no text of the store can move the cursor or change colours. Knows no
session. `rich` and `shutil` are imported only if stdout is a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple, TextIO

from contextfold.cli.output import escape, is_terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

# The width of a row that is still easy to read.
WIDTH_MAX = 110
# Below this width tables leave out the less important columns.
NARROW = 64
# Spaces between columns.
GAP = 2
TAB_WIDTH = 4
GUTTER = "  | "
INSET = 4

# A text, or a text and its style.
Part = str | tuple[str, str]
Line = Sequence[Part]


class Column(NamedTuple):
    """A column. If there is not enough room, it is cut if `shrinks` is true; it wraps if `wraps` is true."""

    title: str = ""
    is_right: bool = False
    shrinks: bool = False
    wraps: bool = False


def right_columns(*titles: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(title, is_right=True) for title in titles]


class Screen:
    """The terminal or pipe that output goes to."""

    def __init__(self, *, is_terminal: bool, width: int, has_colours: bool) -> None:
        self.is_terminal = is_terminal
        self.width = width
        self.has_colours = has_colours
        self._console: Console | None = None

    @property
    def is_narrow(self) -> bool:
        return self.is_terminal and self.width < NARROW

    def lines(self, *lines: Line, wraps: bool = False) -> str:
        """Format lines. On a terminal, a line that is too long is cut, or wraps."""
        if not self.is_terminal:
            return "".join("".join(_plain_text(part) for part in line).rstrip() + "\n" for line in lines)
        return self._draw(*(_build_text(line, wraps=wraps) for line in lines), wraps=wraps)

    def block(self, *lines: Line, wraps: bool = False) -> str:
        """Format lines of stored text. They are indented, so that none of them looks like a line of the program."""
        if not self.is_terminal:
            return self.lines(*([GUTTER, *line] for line in lines))
        from rich.padding import Padding

        return self._draw(*(Padding(_build_text(line, wraps=wraps), (0, 0, 0, INSET)) for line in lines), wraps=wraps)

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[Line]], *, when_narrow: Sequence[int] = ()
    ) -> str:
        """Format a table, with the titles of its columns if they have any.

        `when_narrow` has the positions of the columns that a narrow terminal shows; without it, that shows all.
        """
        if self.is_narrow and when_narrow:
            columns = [columns[at] for at in when_narrow]
            rows = [[row[at] for at in when_narrow] for row in rows]
        if not self.is_terminal:
            titles = [[column.title for column in columns]] if any(column.title for column in columns) else []
            return _align(columns, [*titles, *(["".join(map(_plain_text, cell)) for cell in row] for row in rows)])
        from rich.table import Table

        has_titles = any(column.title for column in columns)
        drawn = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=has_titles, header_style="dim")
        for column in columns:
            drawn.add_column(
                column.title,
                justify="right" if column.is_right else "left",
                no_wrap=not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
                ratio=1 if column.shrinks else None,
            )
        drawn.expand = any(column.shrinks for column in columns)
        for row in rows:
            drawn.add_row(*(_build_text(cell, wraps=column.wraps) for column, cell in zip(columns, row, strict=True)))
        return self._draw(drawn, wraps=True)

    def facts(self, facts: Sequence[tuple[str, Line]]) -> str:
        """Format a table of labels and values, without those that have no value."""
        columns = [Column(), Column(shrinks=self.is_terminal, wraps=self.is_terminal)]
        return self.table(columns, [[[(label, "dim")], parts] for label, parts in facts if any(parts)])

    def figure(self, number: int) -> str:
        """A number: with thousands separators on a terminal, only digits in a pipe."""
        return f"{number:,}" if self.is_terminal else str(number)

    def moment(self, at: str) -> str:
        """A time: in local time on a terminal, in the stored form in a pipe."""
        if not self.is_terminal:
            return at
        here = datetime.fromisoformat(at).astimezone()
        is_today = here.date() == datetime.now(UTC).astimezone().date()
        return f"{here:%H:%M:%S}" if is_today else f"{here:%Y-%m-%d %H:%M}"

    def short(self, known_id: str, length: int) -> str:
        return known_id[:length] if self.is_terminal else known_id

    def _draw(self, *drawn: RenderableType, wraps: bool) -> str:
        if self._console is None:
            self._console = _new_console(self.width, has_colours=self.has_colours)
        with self._console.capture() as captured:
            for one in drawn:
                # The attributes are repeated because printing joins the texts into one without them.
                self._console.print(one, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
        return "".join(line.rstrip(" ") + "\n" for line in captured.get().split("\n")[:-1])


def open_screen(stream: TextIO | None) -> Screen:
    if not is_terminal(stream):
        return Screen(is_terminal=False, width=0, has_colours=False)
    from shutil import get_terminal_size

    has_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Screen(is_terminal=True, width=min(get_terminal_size().columns, WIDTH_MAX), has_colours=has_colours)


def stdout_screen() -> Screen:
    return open_screen(sys.stdout)


def text_lines(text: str) -> list[str]:
    """The lines of a stored text, with tabs as spaces."""
    return [line.expandtabs(TAB_WIDTH) for line in text.splitlines()]


def _new_console(width: int, *, has_colours: bool) -> Console:
    from rich.console import Console

    return Console(
        file=StringIO(),
        force_terminal=True,
        force_jupyter=False,
        color_system="auto" if has_colours else None,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _build_text(line: Line, *, wraps: bool = False) -> Text:
    from rich.text import Text

    drawn = Text(no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
    for part in line:
        drawn.append(_plain_text(part), style="" if isinstance(part, str) else part[1])
    return drawn


def _plain_text(part: Part) -> str:
    return escape(part if isinstance(part, str) else part[0])


def _align(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(len(columns))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column.is_right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        lines.append((" " * GAP).join(cells).rstrip() + "\n")
    return "".join(lines)
