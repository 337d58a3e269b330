"""Every command of the README works as it is written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contextfold.cli.commands import parse_command_line
from tests.support.machine import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Make must not install anything from the folder of a test. It reads these flags only from its command line.
INSTALLED = ("-o", ".venv/.runtime", "-o", ".venv/.compiled")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SCRIPTS = [text for kind, text in BLOCKS if kind == "sh"]
INSTALL, RUN, SERVE = "uv tool install .\n", "contextfold run claude\n", "make serve\n"
# This replaces Claude Code: it prints its arguments and the address that it would send requests to.
FAKE_CLAUDE = '#!/bin/sh\necho "claude $* $ANTHROPIC_BASE_URL"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, with a `claude` on the path."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name in ("Makefile", "src", "requirements", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    claude = tmp_path / "bin" / "claude"
    claude.parent.mkdir()
    claude.write_text(FAKE_CLAUDE)
    claude.chmod(0o755)
    return tmp_path


def environment(cwd: Path) -> dict[str, str]:
    path = os.pathsep.join((str(cwd / ".venv" / "bin"), str(cwd / "bin"), os.environ["PATH"]))
    return {"PATH": path, "HOME": str(cwd), "LANG": "C.UTF-8"}


def run(script: str, cwd: Path) -> str:
    done = subprocess.run(
        ["bash", "-ec", script], cwd=cwd, env=environment(cwd), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def with_port(port: int, script: str) -> str:
    """The script with another port than that of the README."""
    url = f"http://localhost:{port}"
    script = script.replace("contextfold run", f"contextfold run --url {url}")
    return script.replace("http://localhost:9090", url).replace("examples/agent.py", f"examples/agent.py {url}/mcp")


@contextmanager
def serving(cwd: Path) -> Iterator[int]:
    """Runs `make serve` on a free port, as in a terminal; yields the port."""
    with (cwd / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            ["make", *INSTALLED, "serve", "ARGS=--port 0"],
            cwd=cwd,
            env=environment(cwd),
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout
    try:
        line = next((line.decode() for line in iter(process.stdout.readline, b"") if b"listens on" in line), "")
        address = re.fullmatch(r"contextfold listens on http://127\.0\.0\.1:(\d+)/mcp\n", line)
        assert address, (cwd / "serve.log").read_text()
        yield int(address[1])
    finally:
        # This is what Ctrl-C sends.
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        process.stdout.close()


def test_the_readme_commands_work_as_written(home: Path) -> None:
    scripts = [text for text in SCRIPTS if text not in (INSTALL, SERVE) and "make test" not in text]
    assert {INSTALL, RUN, SERVE} <= set(SCRIPTS)
    with serving(home) as port:
        printed = "".join(run(with_port(port, text), home) for text in scripts)
    (headings,) = (text for kind, text in BLOCKS if kind == "text")
    assert "folded 8207 tokens: behind the proxy, later requests would have 8194 fewer\n" in printed
    assert "Logins fail because tokens expire after one minute." in printed
    assert re.search(rf"claude --mcp-config=\S+ .* http://localhost:{port}/run/run_\w+/proxy/anthropic\n", printed)
    assert headings in printed


def test_every_command_named_in_a_sentence_can_be_parsed() -> None:
    named = re.findall(r"`contextfold( [a-z][^`]+)`", README)
    assert len(named) > 5
    for words in named:
        if words not in (" resolve", " run"):
            parse_command_line(shlex.split(words))


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`?make (\w+)", "\n".join([*SCRIPTS, *re.findall(r"`make \w+`", README)])))
    assert named >= {"setup", "serve", "test", "check", "bench", "soak"}
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
