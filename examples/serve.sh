#!/usr/bin/env bash
# What `make serve` runs: the daemon on its embedded store, with a cache built from examples/docs.
set -euo pipefail
context=$1
shift
caches=.example/caches
mkdir -p "$caches"
"$context" build --sources examples/docs --cache "$caches/docs" --force
cat <<TEXT
Built the example cache $caches/docs. The daemon starts; stop it with Ctrl-C. In another terminal:

  .venv/bin/python examples/agent.py        an agent that branches, works and folds
  $context fold search logins        what folded branches came to

An agent's host connects with {"mcpServers": {"contextfold": {"type": "http", "url": "http://localhost:9090/mcp"}}}
in the project's .mcp.json (Claude Code); docs/hosts.md has the others. Where ARGS gave another port or store, name it there.

TEXT
exec "$context" serve --cache-root "$caches" "$@"
