"""Write the keywords of the scrubber's rules as a module of data, so that a command need not read the rules.

python tools/scrub_keywords.py src/contextfold/scrub/keywords.py
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import starmap
from pathlib import Path

from contextfold.scrub.quick_check import lowercased
from contextfold.scrub.rules import rules_from
from contextfold.scrub.standard import read_rules_file

HEADER = '''"""The keywords of the standard rules by their first two bytes: those with one spelling, and the others.

Each character stands for a byte. A keyword that contains another one is left out: a text that has it has both.

Written by tools/scrub_keywords.py; edit rules.toml, not this.
"""

'''
START = 2
LINE_MAX = 120


def has_any(text: bytes, keywords: Iterable[bytes]) -> bool:
    return any(keyword in text for keyword in keywords)


def shortest(keywords: Iterable[bytes]) -> list[bytes]:
    """The keywords that contain no other one."""
    every = list(keywords)
    return [keyword for keyword in every if not has_any(keyword, (other for other in every if other != keyword))]


def quoted(keyword: str) -> str:
    text = ascii(keyword)
    return text if '"' in text else f'"{text[1:-1]}"'


def table(name: str, keywords: Iterable[bytes]) -> str:
    by_start: dict[str, list[str]] = {}
    for keyword in keywords:
        text = keyword.decode("latin-1")
        by_start.setdefault(text[:START], []).append(text)
    rows = "".join(starmap(row, by_start.items()))
    return f"{name} = {{\n{rows}}}\n"


def row(start: str, keywords: Sequence[str]) -> str:
    """One line if it is not too long, as the formatter would have it."""
    comma = "," if len(keywords) == 1 else ""
    line = f"    {quoted(start)}: ({', '.join(map(quoted, keywords))}{comma}),\n"
    if len(line) <= LINE_MAX + len("\n"):
        return line
    lines = "".join(f"        {quoted(keyword)},\n" for keyword in keywords)
    return f"    {quoted(start)}: (\n{lines}    ),\n"


def module() -> str:
    keywords = list(dict.fromkeys(keyword for rule in rules_from(read_rules_file()) for keyword in rule.keywords))
    in_any_case = shortest(lowercased(keyword.encode()) for keyword in keywords if keyword == keyword.lower())
    as_written = shortest(keyword.encode() for keyword in keywords if keyword != keyword.lower())
    as_written = [keyword for keyword in as_written if not has_any(lowercased(keyword), in_any_case)]
    return HEADER + table("AS_WRITTEN", as_written) + table("IN_ANY_CASE", in_any_case)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(module(), encoding="utf-8")
