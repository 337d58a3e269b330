"""Every command of the README, typed as it stands, works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.clauses import covers
from tests.support.machine import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Nothing is installed anew, and never from the folder of a test. Make takes no such flag from its environment.
INSTALLED = ("-o", ".venv/.runtime", "-o", ".venv/.compiled")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, to type in."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name in ("examples", "Makefile", "src", "requirements", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def environment(cwd: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8"}


def run(script: str, cwd: Path) -> str:
    done = subprocess.run(
        ["bash", "-ec", script], cwd=cwd, env=environment(cwd), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def at(port: int, script: str) -> str:
    """The script, for a daemon on another port than the README's."""
    agent = f"examples/agent.py http://localhost:{port}/mcp"
    return script.replace("localhost:9090", f"localhost:{port}").replace("examples/agent.py", agent)


@contextmanager
def serving(cwd: Path) -> Iterator[int]:
    """`make serve`, as somebody would leave it running in a terminal, on a port that is free; the port."""
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
        told = next((line.decode() for line in iter(process.stdout.readline, b"") if b"listens on" in line), "")
        address = re.fullmatch(r"contextfold listens on http://127\.0\.0\.1:(\d+)/mcp\n", told)
        assert address, (cwd / "serve.log").read_text()
        yield int(address[1])
    finally:
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
        process.wait(timeout=60)
        process.stdout.close()


@covers("product.md#serve", "product.md#make", "seed-004#overview", "store.md#port")
def test_the_readme_commands_work_as_they_stand(home: Path) -> None:
    scripts = [text for kind, text in BLOCKS if kind == "sh"]
    assert scripts[0] == "make serve\n"
    with serving(home) as port:
        printed = "".join(run(at(port, text), home) for text in scripts[1:] if "make test" not in text)
    (shown,) = (text for kind, text in BLOCKS if kind == "text")
    assert re.search(re.escape(shown).replace("…", "[0-9a-f]{16}"), printed)
    assert "Logins fail because tokens expire after one minute." in printed
    assert printed.count('"id": "runbooks/rollback.md"') == 1
    assert "ok: 5 documents" in printed


def test_the_answer_shown_is_the_answer_given(home: Path) -> None:
    (shown,) = (json.loads(text) for kind, text in BLOCKS if kind == "json" and "documents" in text)
    commands = next(text for kind, text in BLOCKS if kind == "sh" and "resolve" in text)
    given = json.loads(run(commands, home))
    for claimed, real in zip(shown["documents"], given["documents"], strict=True):
        assert claimed.items() <= real.items()


def test_the_python_example_prints_the_commands_stdout(home: Path) -> None:
    program = next(text for kind, text in BLOCKS if kind == "python" and "open_cache" in text)
    run(".venv/bin/context build --sources examples/docs --cache docs.cache", home)
    (home / "program.py").write_text(program)
    printed = run(".venv/bin/python program.py", home)
    question = ".venv/bin/context resolve --cache docs.cache --query 'roll back a deployment' --budget 200"
    assert printed.endswith(run(question, home))


def test_the_loop_of_ones_own_sends_what_is_shown() -> None:
    program = next(text for kind, text in BLOCKS if kind == "python" and "project(" in text)
    sent: dict[str, object] = {}
    client = SimpleNamespace(messages=SimpleNamespace(create=sent.update))
    said = {"role": "user", "content": "hello"}
    exec(program, {"messages": [said], "client": client, "everything_else": {"model": "any"}})
    assert sent == {"messages": [said], "model": "any"}


@covers("product.md#make", "product.md#checks")
def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`?make (\w+)", README))
    assert named >= {"setup", "serve", "test", "check", "bench", "soak"}
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"
