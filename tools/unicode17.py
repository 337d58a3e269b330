"""Write a module of Unicode 17 data from its table: the lowercase mapping, or the characters of words.

python tools/unicode17.py tests/golden/lowercase-unicode17.tsv src/contextfold/common/unicode17.py
python tools/unicode17.py tools/words-unicode17.tsv src/contextfold/common/relevance/word_characters.py
"""

import sys
from collections.abc import Iterable
from pathlib import Path

HEADER = '''"""Unicode 17's lowercase as data: ranges of code points, no behaviour.

Written by tools/unicode17.py; edit that, not this.
"""

'''

WORDS_HEADER = '''"""The characters of words beyond ASCII, by Unicode 17: ranges of code points, no behaviour.

Written by tools/unicode17.py; edit that, not this.
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


def literal(name: str, comment: str, width: int, rows: Iterable[tuple[int, ...]]) -> str:
    lines, line = [], "   "
    for row in rows:
        item = f" ({', '.join(map(str, row))}),"
        if len(line) + len(item) > 118:
            lines.append(line)
            line = "   "
        line += item
    kind = ", ".join(["int"] * width)
    return "\n".join([f"# {comment}", f"{name}: tuple[tuple[{kind}], ...] = (", *lines, line, ")", ""])


def words_module(lines: Iterable[str]) -> str:
    rows: dict[str, list[tuple[int, ...]]] = {"W": [], "J": []}
    for line in lines:
        kind, first, last = line.split("\t")
        rows[kind].append((int(first, 16), int(last, 16)))
    return WORDS_HEADER + "\n".join(
        [
            literal("WORD", "Letters, marks, numbers and connectors, without the next table", 2, rows["W"]),
            literal("CJK", "Han, Kana, Bopomofo and Hangul, which are written without spaces", 2, rows["J"]),
        ]
    )


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    text = words_module(lines) if lines[0].startswith("W") else lowercase_module(lines)
    Path(sys.argv[2]).write_text(text, encoding="utf-8")


def lowercase_module(lines: Iterable[str]) -> str:
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
    return HEADER + "\n".join(
        [
            literal("LOWER", "(first, last, step, delta): each moves by delta", 4, strides(single)),
            "# The mappings to more than one code point.",
            f"LOWER_SEVERAL: dict[str, str] = {several!a}\n",
            literal("CASED", "Cased, as the final sigma rule asks", 2, ranges(cased)),
            literal("CASE_IGNORABLE", "Case_Ignorable, likewise", 2, ranges(ignorable)),
        ]
    )


if __name__ == "__main__":
    main()
