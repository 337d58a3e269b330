"""House rules, kept by a test: complete maps, true pictures, small modules, generated data as generated."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from bench import corpora as bench_corpora
from bench import daemon as bench_daemon
from bench import hooks as bench_hooks
from bench import nats as bench_nats
from bench import page as bench_page
from bench import proxy as bench_proxy
from bench import replay as bench_replay
from bench import resolve as bench_resolve
from bench import secrets as bench_secrets
from bench import stdio as bench_stdio
from bench import tampering as bench_tampering

import contextfold
from contextfold import errors
from contextfold.error_codes import EXIT_CODES, HTTP_STATUSES, JSON_RPC_CODES
from machine import GOLDEN, ROOT, SOAK, SOURCE

MODULES = sorted(SOURCE.rglob("*.py"))
MODULE_LINES = 450
FROZEN_MESSAGES = {
    "cache_missing": "Cache does not exist",
    "cache_invalid": "Cache exists but is invalid",
    "invalid_query": "Query is invalid",
    "invalid_budget": "Budget is invalid",
    "io_error": "I/O error occurred",
    "internal_error": "Internal error",
}


def test_every_error_code_has_one_exit_code_and_a_json_rpc_code() -> None:
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    assert codes >= FROZEN_MESSAGES.keys()
    assert codes == set(EXIT_CODES) == set(JSON_RPC_CODES)
    assert sorted(EXIT_CODES[code] for code in FROZEN_MESSAGES) == [2, 3, 4, 5, 6, 7]
    assert {JSON_RPC_CODES[code] for code in FROZEN_MESSAGES} == {-32602, -32603}
    assert {code for code in FROZEN_MESSAGES if JSON_RPC_CODES[code] == -32603} == {"io_error", "internal_error"}


def test_every_folding_error_has_an_http_status_and_its_documented_code() -> None:
    folding = {kind.code for kind in errors.FoldError.__subclasses__()}
    assert folding | {"internal_error"} == set(HTTP_STATUSES)
    assert {code: JSON_RPC_CODES[code] for code in folding} == {
        "invalid_argument": -32602,
        "session_not_found": -32602,
        "branch_not_found": -32602,
        "context_limit": -32001,
        "invalid_branch_state": -32003,
        "limit_reached": -32004,
        "store_unavailable": -32603,
        "store_invalid": -32603,
        "scrub_failed": -32603,
    }


def test_the_frozen_messages_are_these() -> None:
    kinds = [kind for kind in errors.ContextError.__subclasses__() if kind is not errors.FoldError]
    assert {kind.code: kind.message for kind in kinds} == FROZEN_MESSAGES


def test_the_unicode_tables_are_what_the_tool_writes(tmp_path: Path) -> None:
    argv: list[str | Path] = [
        sys.executable,
        ROOT / "tools" / "unicode17.py",
        GOLDEN / "lowercase-unicode17.tsv",
        tmp_path / "written.py",
    ]
    subprocess.run(argv, check=True)
    assert (tmp_path / "written.py").read_bytes() == (SOURCE / "contextfold" / "unicode17.py").read_bytes()


def test_every_module_says_what_it_owns_and_holds_one_idea() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), path
        assert len(text.splitlines()) <= MODULE_LINES, path


def test_the_picture_of_the_house_shows_every_module() -> None:
    picture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\b([a-z0-9_]+\.py)\b", picture.split("```")[1]))
    assert shown == {path.name for path in MODULES if not path.name.startswith("__")} | {"__init__.py"}


def test_every_dependency_says_why_it_is_there() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    required = (ROOT / "requirements" / "dev.in").read_text(encoding="utf-8").split()
    required += tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    required += json.loads((ROOT / "tests" / "clients" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    for requirement in required:
        name = re.split("[=<>~!]", requirement)[0]
        assert f"| {name} |" in reasons


def test_the_lock_files_name_no_place_to_download_from() -> None:
    packages = json.loads((ROOT / "tests" / "clients" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for path, package in packages.items() if path)
    assert "://" not in (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")


def test_no_file_names_the_host_of_a_registry() -> None:
    names = (r"registry\.np" + "mjs", r"\bpy" + r"pi\.org", "python" + "hosted", "np" + r"mjs\.(com|org)")
    folders = [ROOT / name for name in ("src", "tests", "bench", "docs", "examples", "requirements", "tools", ".ci")]
    paths = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    for path in paths:
        if path.is_file() and "node_modules" not in path.parts and path.suffix != ".pyc":
            assert not re.search("|".join(names), path.read_text(encoding="utf-8", errors="replace")), path


def test_the_bench_prints_every_figure_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On corpora too small to judge: that each figure is there, beside its yardstick and with a verdict."""
    monkeypatch.setattr(bench_corpora, "HERE", tmp_path)
    monkeypatch.setattr(bench_resolve, "HERE", tmp_path)
    monkeypatch.setattr(bench_stdio, "HERE", tmp_path)
    sizes = (5, 10, 20)
    bench_resolve.main(sizes, turns=1)
    bench_stdio.main(sizes, turns=1)
    monkeypatch.setattr(bench_tampering, "HERE", tmp_path)
    assert bench_tampering.main(sizes)
    bench_daemon.main(turns=1, sessions=50)
    bench_hooks.main(turns=1, rounds=3)
    bench_nats.main(turns=1, number=16)
    bench_replay.main(turns=1, folder=tmp_path, most=1, at_least=100_000)
    bench_proxy.main(turns=1, requests=16, subtasks=1)
    bench_secrets.main(turns=1)
    if SOAK:  # a minute of waiting for a browser; what it measures, tests/browser looks at every time
        bench_page.main(turns=1, sessions=20, branches=2, long=61, operations=300)
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.rstrip().endswith((" ok", " TOO SLOW"))]
    for figure in (
        "3 documents",
        "10 documents",
        "20 documents",
        "peak memory",
        "warm call",
        "build",
        "cold",
        "ping",
        "warm resolve, 5",
        "branch + return, 1 client, 2025-11-25",
        "branch + return, 16 clients, 2026-07-28",
        "memory with 50 open sessions",
        "2 KB",
        "1 MB",
        "missed",
        "by mistake",
        "a hook's answer, p99, 16 agents at once",
        "commits, 1 client, 1 server",
        "commits, 16 clients, 3 servers",
        "the least of them, 16 clients, 1 server",
        "folding a request of the replay, anthropic",
        "in the agent's own loop, openai-responses",
        "a history of 0.1 MB, nothing to fold, openai-chat",
        "memory beside a history of",
        "generated, last words",
        "1 KB, 1 client",
        "folded, first byte of a stream, 16 clients",
        *(("first view of the list", "update of a session") if SOAK and bench_page.CHROMIUM else ()),
    ):
        assert any(figure in row for row in rows), figure
    assert printed.count("one-shot noticed, warm library noticed, warm stdio noticed") == 4


def test_the_distribution_is_named_contextfold() -> None:
    assert importlib.metadata.version("contextfold") == contextfold.__version__


def test_no_page_has_a_gap_where_figures_should_be() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"^(FIGURES|TBD|TODO)$", page.read_text(encoding="utf-8"), re.MULTILINE), page


def test_ci_calls_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("make check", "make test"):
        assert command in script
        assert command in readme
