"""The documents can be followed: links have targets, commands and examples run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from contextfold.cli.commands import parse_command_line
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.machine import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), DOCS / "llms.txt"])
BLOCK = re.compile(r"^( *)(`{3,})([a-z]*)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
BRANCH = "br_5105c2a5e77b6c3a"
TIMEOUT_S = 60
# These do not end by themselves, or need a network, a service manager, NATS or somebody's own program.
NOT_RUN = re.compile(
    r"\bcontext (?:serve|service|fold tail)|--watch|nats|CONTEXT_CONFIG|^pip |^uv |examples/loop\.py|^\.venv"
)
# These stand in for the programs of agents.
AGENTS = ("claude", "code", "codex", "gemini", "opencode")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def read_links(page: Path) -> list[str]:
    """The targets of links and pictures inside the repository."""
    # Brackets in code are not links.
    prose = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", BLOCK.sub("", read(page)))
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", prose) + re.findall(r"<img\b[^>]*?src=\"([^\"]+)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def read_anchors(page: Path) -> set[str]:
    """The anchors of the headings, as web sites derive them: lowercase letters, digits, and dashes for spaces."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", read(page)), re.MULTILINE)
    names = ("".join(letter for letter in name.lower() if letter.isalnum() or letter in " -_") for name in headings)
    return {name.replace(" ", "-") for name in names}


def read_commands(page: Path, kind: str = "sh") -> list[str]:
    """The lines of the page's shell blocks, in order. A console block has alternatives, which are not run in order."""
    scripts = [text for _, _, each, text in BLOCK.findall(read(page)) if each == kind]
    return [line.strip() for script in scripts for line in script.replace("\\\n", " ").splitlines()]


def test_every_link_has_a_target_and_every_page_is_linked() -> None:
    linked = set()
    for page in PAGES:
        for link in read_links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            assert target.is_relative_to(ROOT), f"{page}: {link} leads out of the repository"
            assert not anchor or anchor in read_anchors(target), f"{page}: {link}"
            linked |= {target} - {page}
    assert set(DOCS.glob("*.md")) <= linked


def test_every_command_that_cannot_be_run_here_can_be_parsed() -> None:
    commands = [line for page in PAGES for line in read_commands(page) if NOT_RUN.search(line)]
    alternatives = [line for page in PAGES for line in read_commands(page, "console")]
    assert "context service install" in commands
    assert "context uninstall claude-code" in alternatives
    for line in commands + [line.partition("#")[0] for line in alternatives if line.startswith("context ")]:
        for part in re.split(r"[|;&<>()]+", line):
            words = [word for word in shlex.split(part) if not re.fullmatch(r"\w+=.*", word)]
            if words and words[0] in ("context", "contextfold"):
                parse_command_line(words[1:])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(tmp_path / "daemon")
    yield running
    running.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the documents of the examples, a cache of them, and programs in the place of agents."""
    folder = tmp_path / "home"
    shutil.copytree(ROOT / "examples" / "docs", folder / "docs", ignore=shutil.ignore_patterns(".context-cache"))
    (folder / "etc").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "my_agent.py").touch()
    for name in AGENTS:
        program = folder / "bin" / name
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", sorted(page.name for page in DOCS.glob("*.md") if read_commands(page)))
def test_the_commands_of_a_page_work_as_written(name: str, home: Path, daemon: Daemon) -> None:
    with HttpAgent(daemon.port) as agent:
        branch = agent.call("context_branch", description="Why logins fail", prompt="Look", project_path=str(home))
        agent.call("context_return", message="Logins fail: tokens expire.", project_path=str(home))
    replacements = {
        "http://localhost:9090": f"http://127.0.0.1:{daemon.port}",
        "/etc/contextfold": str(home / "etc"),
        "/etc/prometheus": str(home / "etc"),
        BRANCH: branch["branch_id"],
    }
    path = os.pathsep.join((str(home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    env = os.environ | {"HOME": str(home), "PATH": path, "CONTEXT_STORE": str(daemon.store), "LANG": "C.UTF-8"}
    for line in read_commands(DOCS / name):
        if NOT_RUN.search(line):
            continue
        # `run` and `doctor` look for a daemon at its usual address.
        command = re.sub(r"context (run|doctor)", r"context \1 --url http://localhost:9090", line)
        for old, new in replacements.items():
            command = command.replace(old, new)
        folder = home / "docs" if line.startswith(("context ask", "context get")) else home
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        # `doctor` finds that the agent which was just installed has reported nothing.
        assert done.returncode in ((0, 1) if "doctor" in line else (0,)), f"{line}\n{done.stdout}\n{done.stderr}"


def run_loop(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the example with only the standard library; installed packages cannot be imported."""
    words = [sys.executable, "-I", "-S", str(ROOT / "examples" / "loop.py"), *argv]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_example_loop_prints_the_documented_output_and_is_recorded(daemon: Daemon, tmp_path: Path) -> None:
    done = run_loop(str(daemon.port), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in read(DOCS / "getting-started.md")
    with Http(daemon.port) as http:
        (row,) = http.ask("GET", "/v1/sessions").json["sessions"]
    assert row["project_path"] == str(tmp_path)
    assert (row["folded_tokens"], row["tokens_saved"], row["total_tokens"]) == (8220, 8207, 18)
    assert (row["operations"], row["failed_operations"], row["folded_branches"]) == (3, 1, 1)


def test_the_example_loop_prints_the_error_of_a_daemon_that_refuses_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    strict = Daemon(tmp_path / "daemon", "--token-file", str(tokens))
    try:
        done = run_loop(str(strict.port), cwd=tmp_path)
    finally:
        strict.stop()
    assert done.returncode == 1
    assert done.stderr.startswith("A valid token is needed")


def test_the_python_examples_of_the_page_about_caches_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    names: dict[str, object] = {}
    for _, _, kind, text in BLOCK.findall(read(DOCS / "caches.md")):
        if kind == "python":
            exec(compile(text, "caches.md", "exec"), names)
    assert "runbooks/rollback.md" in capsys.readouterr().out
