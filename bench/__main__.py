"""`make bench`: all figures; exit 1 if one of them does not hold. `python -m bench NAME …` runs only those."""

import sys
from importlib import import_module

NAMES = (
    "resolve",
    "stdio",
    "tampering",
    "daemon",
    "hooks",
    "nats",
    "replay",
    "ledger",
    "hook_reports",
    "proxy",
    "secrets",
    "page",
    "relevance",
    "economy",
    "recall",
    "first_prompts",
    "commands",
)

if unknown := [name for name in sys.argv[1:] if name not in NAMES]:
    sys.exit(f"there is no bench {unknown[0]}; choose from {', '.join(NAMES)}")
# A module is imported when it is its turn, so that one bench needs only what it uses.
held = [import_module(f"bench.{name}").main() for name in sys.argv[1:] or NAMES]
sys.exit(0 if all(held) else 1)
