"""`context serve`: the engine for agents, over MCP."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.parse import UsageError
from contextfold.failures import EXIT_OK
from contextfold.settings import settings_from


def run(values: Mapping[str, str]) -> int:
    if "stdio" not in values:
        raise UsageError("say how to serve: --stdio is what there is; see `context serve --help`")
    settings = settings_from(os.environ, values.get("cache-root"))
    from contextfold.serve.stdio import serve

    serve(settings)
    return EXIT_OK
