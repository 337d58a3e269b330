#!/usr/bin/env bash
# What `make serve` shows: a cache built from examples/docs, one question answered, and what to type next.
set -euo pipefail
context=$1
cache=.example/docs.cache
mkdir -p .example
"$context" build --sources examples/docs --cache "$cache" --force
echo "Built $cache from the five documents in examples/docs. Asking it:"
echo
echo "  $context resolve --cache $cache --query \"roll back a deployment\" --budget 200 --format pretty"
echo
"$context" resolve --cache "$cache" --query "roll back a deployment" --budget 200 --format pretty
cat <<TEXT

Now with documents of your own:

  $context build --sources YOUR_FOLDER --cache my.cache
  $context resolve --cache my.cache --query "your question" --budget 4000

  $context --help tells the rest.
TEXT
