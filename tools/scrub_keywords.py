"""Write the keywords of the scrubber's rules as a module of data, so that a command need not read the rules.

python tools/scrub_keywords.py src/contextfold/scrub/keywords.py
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from contextfold.scrub.quick_check import lowercased
from contextfold.scrub.rules import rules_from
from contextfold.scrub.standard import read_rules_file

HEADER = '''"""The keywords of the standard rules: those with one spelling, and the others, separated by `|`.

Each character stands for a byte. A keyword that contains another one is left out: a text that has it has both.

Written by tools/scrub_keywords.py; edit rules.toml, not this.
"""

# fmt: off
'''
SEPARATOR = b"|"
# Without the indentation and the quotation marks.
LINE_MAX = 114


def has_any(text: bytes, keywords: Iterable[bytes]) -> bool:
    return any(keyword in text for keyword in keywords)


def shortest(keywords: Iterable[bytes]) -> list[bytes]:
    """The keywords that contain no other one."""
    every = list(keywords)
    return [keyword for keyword in every if not has_any(keyword, (other for other in every if other != keyword))]


def table(name: str, keywords: Iterable[bytes]) -> str:
    """As many keywords on a line as fit: nobody reads them one by one."""
    lines = [""]
    for number, keyword in enumerate(keywords):
        assert SEPARATOR not in keyword
        part = ascii((SEPARATOR * (number > 0) + keyword).decode("latin-1"))[1:-1]
        assert '"' not in part
        if len(lines[-1]) + len(part) > LINE_MAX:
            lines.append("")
        lines[-1] += part
    text = "".join(f'    "{line}"\n' for line in lines)
    return f"{name} = (\n{text})\n"


def module() -> str:
    keywords = list(dict.fromkeys(keyword for rule in rules_from(read_rules_file()) for keyword in rule.keywords))
    in_any_case = shortest(lowercased(keyword.encode()) for keyword in keywords if keyword == keyword.lower())
    as_written = shortest(keyword.encode() for keyword in keywords if keyword != keyword.lower())
    as_written = [keyword for keyword in as_written if not has_any(lowercased(keyword), in_any_case)]
    return HEADER + table("AS_WRITTEN", as_written) + table("IN_ANY_CASE", in_any_case)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(module(), encoding="utf-8")
