"""Write the keywords of the scrubber's rules as a module of data, so that a command need not read the rules.

python tools/scrub_keywords.py src/contextfold/scrub/keywords.py
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from contextfold.scrub.quick_check import lowercased
from contextfold.scrub.rules import rules_from
from contextfold.scrub.standard import read_rules_file

HEADER = '''"""The keywords of the standard rules by their first two bytes: those with one spelling, and the others.

Each character stands for a byte. A keyword that contains another one is left out: a text that has it has both.

Written by tools/scrub_keywords.py; edit rules.toml, not this.
"""

# fmt: off
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
    parts: list[str] = []
    for start, some in by_start.items():
        row = [f"{quoted(keyword)}," for keyword in some]
        parts += [f"{quoted(start)}: ({row[0]}", *row[1:]]
        parts[-1] += "),"
    return f"{name} = {{\n{wrapped(parts)}}}\n"


def wrapped(parts: Iterable[str]) -> str:
    """As many parts on a line as fit: nobody reads the keywords one by one."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(" ") + len(part) <= LINE_MAX:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return "".join(f"{line}\n" for line in lines)


def module() -> str:
    keywords = list(dict.fromkeys(keyword for rule in rules_from(read_rules_file()) for keyword in rule.keywords))
    in_any_case = shortest(lowercased(keyword.encode()) for keyword in keywords if keyword == keyword.lower())
    as_written = shortest(keyword.encode() for keyword in keywords if keyword != keyword.lower())
    as_written = [keyword for keyword in as_written if not has_any(lowercased(keyword), in_any_case)]
    return HEADER + table("AS_WRITTEN", as_written) + table("IN_ANY_CASE", in_any_case)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(module(), encoding="utf-8")
