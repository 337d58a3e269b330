#!/usr/bin/env bash
# Installs the wheel of a folder as people do, each time into an empty home, and uses it: try_installers.sh DIST [BIN]
set -euo pipefail
wheel=$(ls "$(realpath "$1")"/*.whl)
PATH=${2:+$(realpath "$2"):}$PATH
python=$(python3 -c 'import sys; print(sys.executable)')
try() {
  name=$1 command=$2 home=$(mktemp -d)
  began=$(date +%s%N)
  (
    export HOME=$home UV_PYTHON=$python PIPX_DEFAULT_PYTHON=$python
    unset XDG_DATA_HOME XDG_CACHE_HOME XDG_BIN_HOME PIPX_HOME PIPX_BIN_DIR UV_TOOL_DIR UV_CACHE_DIR VIRTUAL_ENV
    PATH=$home/.local/bin:$PATH
    cd "$home"
    mkdir docs && printf '# Tokens\n\nA token is four bytes.\n' >docs/a.md
    eval "$command" >install.log 2>&1 || { cat install.log; exit 1; }
    $run contextfold --version
    $run context build docs 2>/dev/null >/dev/null
    $run context ask "what is a token" --cache docs/.context-cache 2>/dev/null | grep -q "four bytes"
    $run context audit 2>/dev/null >/dev/null || test $? -le 1
  )
  echo "$name: $(((($(date +%s%N) - began)) / 1000000)) ms, $(du -sm "$home" | cut -f1) MB with its downloads"
  rm -rf "$home"
}
run="" try "uv tool install" "uv tool install --quiet '$wheel'"
run="uvx --quiet --from $wheel" try "uvx" "true"
run="" try "pipx install" "pipx install --quiet '$wheel'"
