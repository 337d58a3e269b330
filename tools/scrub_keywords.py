"""Write the keywords of the scrubber's rules as a module of data, so that a command need not read the rules.

python tools/scrub_keywords.py src/contextfold/scrub/keywords.py
"""

import sys
from pathlib import Path

from contextfold.scrub.quick_check import lowercased
from contextfold.scrub.rules import rules_from
from contextfold.scrub.standard import read_rules_file

HEADER = '''"""The keywords of the standard rules as data: those that match only as they are written, and the others.

Written by tools/scrub_keywords.py; edit rules.toml, not this.
"""

'''


def quoted(keyword: bytes) -> str:
    text = repr(keyword)[1:]
    return f"b{text}" if '"' in text else f'b"{text[1:-1]}"'


def module() -> str:
    keywords = list(dict.fromkeys(keyword for rule in rules_from(read_rules_file()) for keyword in rule.keywords))
    lists = {
        "AS_WRITTEN": [keyword.encode() for keyword in keywords if keyword != keyword.lower()],
        "IN_ANY_CASE": [lowercased(keyword.encode()) for keyword in keywords if keyword == keyword.lower()],
    }
    return (
        HEADER
        + "\n".join(
            f"{name} = (\n" + "".join(f"    {quoted(keyword)},\n" for keyword in found) + ")"
            for name, found in lists.items()
        )
        + "\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(module(), encoding="utf-8")
