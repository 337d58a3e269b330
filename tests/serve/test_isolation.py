"""The stdio server needs no network, reads only its caches, and uses only its own environment variables."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.stdio_client import ASK, GET, INITIALIZE, RESOLVE, after_handshake, call, environment, request
from tests.support.machine import COMMAND, ROOT

CALLS = (
    request("tools/list"),
    call("context.list_caches"),
    call("context.resolve", RESOLVE),
    call("context.resolve", {**RESOLVE, "query": "Σ é"}),
    call("context.resolve", {**RESOLVE, "cache": "nowhere"}),
    call("context.inspect_cache", {"cache": "docs"}),
    call("context.ask", ASK),
    call("context.get", GET),
)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root for a network namespace")
def test_the_server_answers_without_a_network(root: Path) -> None:
    lines = INITIALIZE + b"".join(CALLS)
    argv = ["unshare", "--net", str(COMMAND), "serve", "--stdio"]
    result = subprocess.run(argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True)
    assert [json.loads(line) for line in result.stdout.splitlines()][1:] == after_handshake(root, *CALLS)


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_the_server_opens_no_socket_and_no_file_but_caches_and_python(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "docs", root / "other")
    trace = tmp_path / "trace"
    argv = ["strace", "-f", "-e", "trace=%file,%network", "-o", str(trace), str(COMMAND), "serve", "--stdio"]
    home = tmp_path / "home"
    home.mkdir()
    env = environment(root, HOME=str(home))
    subprocess.run(argv, input=INITIALIZE + b"".join(CALLS), env=env, capture_output=True, timeout=120, check=True)
    calls = trace.read_text(errors="replace").splitlines()
    assert not [line for line in calls if re.search(r"\b(socket|connect|bind|sendto)\(", line)]
    started = next(at for at, line in enumerate(calls) if "serve/stdio" in line)
    opened = {
        match[1]
        for line in calls[started:]
        if (match := re.search(r'open(?:at)?\([^"]*"([^"]+)"', line)) and "ENOENT" not in line
    }
    # Python 3.12 and newer count the threads of the process in /proc/self/stat before they fork.
    own = ["/dev/null", "/proc/self/stat", "/usr/lib", "/lib", "/etc/ld.so.cache"]
    python = [sys.base_prefix, sys.prefix, str(ROOT / "src"), *own]
    assert {path for path in opened if path.startswith(str(root))}
    assert {path for path in opened if path.startswith(str(root / "other"))} == set()
    assert {path for path in opened if not path.startswith((str(root), *python))} == set()


def test_other_variables_change_no_answer(root: Path) -> None:
    expected = after_handshake(root, *CALLS)
    noise = dict.fromkeys(("DEBUG", "CONTEXT_DEBUG", "CONTEXT_CACHE", "CONTEXTFOLD_SOAK", "MCP_DEBUG", "NO_COLOR"), "1")
    noise |= {
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Tokyo",
        "PYTHONHASHSEED": "7",
        "HOME": "/nowhere",
        "XDG_DATA_HOME": "/nowhere",
    }
    argv, lines = [str(COMMAND), "serve", "--stdio"], INITIALIZE + b"".join(CALLS)
    ran = subprocess.run(argv, input=lines, env=environment(root, **noise), capture_output=True, timeout=60, check=True)
    assert [json.loads(line) for line in ran.stdout.splitlines()][1:] == expected
