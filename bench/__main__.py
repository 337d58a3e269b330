"""`make bench`: all figures; exit 1 if one of them does not hold."""

import sys

from bench import (
    commands,
    daemon,
    economy,
    first_prompts,
    hook_reports,
    hooks,
    ledger,
    nats,
    page,
    proxy,
    recall,
    relevance,
    replay,
    resolve,
    secrets,
    stdio,
    tampering,
)

held = [resolve.main(), stdio.main(), tampering.main(), daemon.main(), hooks.main(), nats.main()]
held += [replay.main(), ledger.main(), hook_reports.main(), proxy.main(), secrets.main(), page.main(), relevance.main()]
held += [economy.main(), recall.main(), first_prompts.main(), commands.main()]
sys.exit(0 if all(held) else 1)
