#!/bin/sh
# Makes the folder for caches, and on the first start a token for the owner `local`, printed this once.
set -eu
mkdir -p "${CONTEXT_CACHE_ROOT:-/state/caches}"
if [ ! -e "$CONTEXT_TOKEN_FILE" ]; then
  echo "token for the owner local: $(context token local --token-file "$CONTEXT_TOKEN_FILE")"
fi
exec "$@"
