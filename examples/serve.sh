#!/usr/bin/env bash
# What `make serve` runs: the daemon on its embedded store, with a cache built from examples/docs.
set -euo pipefail
context=$1
shift
caches=.example/caches
mkdir -p "$caches"
"$context" build --sources examples/docs --cache "$caches/docs" --force 2>/dev/null
exec "$context" serve --cache-root "$caches" "$@"
