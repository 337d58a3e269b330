"""Write the module of Unicode 17 data from two tables: the lowercase mapping, and the characters of words.

python tools/unicode17.py tests/golden/lowercase-unicode17.tsv tools/words-unicode17.tsv \\
    src/contextfold/common/unicode17.py
"""

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

HEADER = '''"""Unicode 17's lowercase and characters of words as data, no behaviour.

Written by tools/unicode17.py; edit that, not this. A set of code points is a text of its ranges, which `text.ranges`
reads: for each, the distance from the end of the one before, and after a plus sign by how much it is longer than 1.
"""

'''


def ranges(code_points: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for code_point in sorted(code_points):
        if found and found[-1][1] == code_point - 1:
            found[-1] = (found[-1][0], code_point)
        else:
            found.append((code_point, code_point))
    return found


def strides(deltas: dict[int, int]) -> list[tuple[int, int, int, int]]:
    """(first, last, step, delta) rows: every step-th code point from first to last moves by delta."""
    rows: list[tuple[int, int, int, int]] = []
    for code_point, delta in sorted(deltas.items()):
        if rows:
            first, last, step, row_delta = rows[-1]
            gap = code_point - last
            if delta == row_delta and (gap == step if first != last else gap in (1, 2)):
                rows[-1] = (first, code_point, gap, delta)
                continue
        rows.append((code_point, code_point, 1, delta))
    return rows


def rows_literal(name: str, comment: str, rows: Iterable[tuple[int, ...]]) -> str:
    lines = textwrap.wrap(" ".join(f"({',_'.join(map(str, row))})," for row in rows), 114)
    body = "\n".join("    " + line.replace("_", " ") for line in lines)
    return f"# {comment}\n{name}: tuple[tuple[int, int, int, int], ...] = (\n{body}\n)\n"


def ranges_literal(name: str, comment: str, found: Iterable[tuple[int, int]]) -> str:
    written, end = [], 0
    for first, last in found:
        written.append(f"{first - end}+{last - first}" if last > first else str(first - end))
        end = last
    lines = textwrap.wrap(" ".join(written), 113)
    body = "\n".join(f'    "{line} "' for line in lines)
    return f"# {comment}\n{name} = (\n{body}\n)\n"


def words_literals(lines: Iterable[str]) -> list[str]:
    found: dict[str, list[tuple[int, int]]] = {"W": [], "J": []}
    for line in lines:
        kind, first, last = line.split("\t")
        found[kind].append((int(first, 16), int(last, 16)))
    return [
        ranges_literal(
            "WORD", "Letters, marks, numbers and connectors beyond ASCII, without the next table", found["W"]
        ),
        ranges_literal("CJK", "Han, Kana, Bopomofo and Hangul, which are written without spaces", found["J"]),
    ]


def lowercase_literals(lines: Iterable[str]) -> list[str]:
    lower: dict[int, list[int]] = {}
    cased: set[int] = set()
    ignorable: set[int] = set()
    for line in lines:
        kind, *fields = line.split("\t")
        if kind == "L":
            lower[int(fields[0], 16)] = [int(part, 16) for field in fields[1:] for part in field.split()]
        elif kind == "C":
            cased.add(int(fields[0], 16))
        elif kind == "I":
            ignorable.add(int(fields[0], 16))
    single = {cp: to[0] - cp for cp, to in lower.items() if len(to) == 1}
    several = {chr(cp): "".join(map(chr, to)) for cp, to in lower.items() if len(to) > 1}
    return [
        rows_literal("LOWER", "(first, last, step, delta): each moves by delta", strides(single)),
        f"# The mappings to more than one code point.\nLOWER_SEVERAL: dict[str, str] = {several!a}\n",
        ranges_literal("CASED", "Cased, as the final sigma rule asks", ranges(cased)),
        ranges_literal("CASE_IGNORABLE", "Case_Ignorable, likewise", ranges(ignorable)),
    ]


def main() -> None:
    lowercase, words = (Path(name).read_text(encoding="utf-8").splitlines() for name in sys.argv[1:3])
    literals = lowercase_literals(lowercase) + words_literals(words)
    Path(sys.argv[3]).write_text(HEADER + "\n".join(literals), encoding="utf-8")


if __name__ == "__main__":
    main()
