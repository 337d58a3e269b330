"""`make bench` measures all figures; exit 1 if one exceeds its limit. `python -m bench NAME …` runs only these."""

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
    "answers",
    "economy",
    "economy_sessions",
    "audit",
    "ended_sessions",
    "recall",
    "locomo",
    "first_prompts",
    "commands",
)

if unknown := [name for name in sys.argv[1:] if name not in NAMES]:
    sys.exit(f"there is no bench {unknown[0]}; choose from {', '.join(NAMES)}")
# Each module is imported just before it runs, so that one bench needs only its own packages.
results = [import_module(f"bench.{name}").main() for name in sys.argv[1:] or NAMES]
sys.exit(0 if all(results) else 1)
