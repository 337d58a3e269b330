"""Commands start quickly: the modules that each of them may import. `bench/commands.py` measures the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contextfold.common.canonical import parse_json
from contextfold.fold.ledger.sent_request import RequestReport
from contextfold.fold.messages import Receipt
from tests.cli.fold.folds import PROJECT, StoreAgent
from tests.support.daemon import Daemon

SCRIPT = (
    "import os, sys; from contextfold.cli.main import main; code = main(sys.argv[1:]);"
    "os.write(int(os.environ['MODULES_TO']), '\\n'.join(sys.modules).encode()); sys.exit(code)"
)
# Modules whose import takes at least a tenth of an interpreter's start.
COSTLY = {
    "argparse",
    "asyncio",
    "concurrent.futures",
    "dataclasses",
    "email",
    "hashlib",
    "http.client",
    "inspect",
    "json",
    "logging",
    "opentelemetry",
    "pathlib",
    "re",
    "re2",
    "rich",
    "secrets",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "tomllib",
    "typing",
    "urllib.parse",
}


# Modules that only the help, other commands and writing commands need.
UNNEEDED = {
    "contextfold.cache_errors",
    "contextfold.cli.agent_commands",
    "contextfold.cli.cache_commands",
    "contextfold.cli.daemon_commands",
    "contextfold.cli.help",
    "contextfold.common.relevance.stored_counts",
    "contextfold.export_errors",
    "contextfold.fold.service.callers",
    "contextfold.fold.service.overview",
    "contextfold.fold.verbs",
    "contextfold.stores.sqlite.schema",
}


def modules(folder: Path, *argv: object, env: dict[str, str] | None = None) -> set[str]:
    """The modules that a process of this command has imported when it ends."""
    read_end, write_end = os.pipe()
    try:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "MODULES_TO": str(write_end)} | (env or {})
        command = [sys.executable, "-c", SCRIPT, *map(str, argv)]
        done = subprocess.run(
            command, env=environment, cwd=folder, pass_fds=[write_end], capture_output=True, check=False
        )
        os.close(write_end)
        write_end = -1
        assert done.returncode in (0, 1), done.stderr
        with open(read_end, encoding="utf-8", closefd=False) as file:
            return set(file.read().split("\n"))
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "state.db"
    agent = StoreAgent(path)
    agent.branch("Find the fault")
    agent.record("test", "three tests fail")
    agent.fold("The clock was wrong.")
    return path


@pytest.mark.parametrize(
    "argv",
    [
        ["fold", "status", "--all"],
        ["fold", "status", "--project", PROJECT],
        ["fold", "list", "--project", PROJECT],
        ["fold", "list", "--ended"],
        ["fold", "show", "main", "--project", PROJECT],
        ["fold", "search", "clock"],
        ["fold", "savings", "--project", PROJECT],
        ["fold", "report", "--project", PROJECT],
        ["fold", "expand", "main", "--project", PROJECT],
        ["recall", "who saw the broken timer"],
        ["recall", "clock"],
        ["recall", "rotate the auth token"],
    ],
    ids=" ".join,
)
def test_commands_on_a_store_import_no_event_loop_and_no_scrub_rules(
    argv: list[str], store: Path, tmp_path: Path
) -> None:
    loaded = modules(tmp_path, *argv, "--store", store)
    assert "contextfold.stores.sqlite.reader" in loaded
    # The first question builds the index of recall. That needs regular expressions and writes to the store.
    is_indexing = "contextfold.stores.sqlite.store" in loaded
    assert not is_indexing or argv[0] == "recall"
    assert not (COSTLY - {"re"} if is_indexing else COSTLY | {"datetime", "functools"} | UNNEEDED) & loaded
    assert "collections" not in loaded or argv[0] == "recall"
    assert not {name for name in loaded if name.startswith("contextfold.serve.")}


def test_the_status_of_a_known_model_imports_no_costly_module(tmp_path: Path) -> None:
    agent = StoreAgent(tmp_path / "state.db")
    agent.branch("Find the fault")
    agent.sent(RequestReport("1", "anthropic", "us.anthropic.claude-opus-4-5", Receipt(9, 9)))
    loaded = modules(tmp_path, "fold", "status", "--project", PROJECT, "--store", tmp_path / "state.db")
    assert "contextfold.fold.model_catalog" in loaded
    assert not COSTLY & loaded


def test_a_question_with_a_keyword_of_a_rule_imports_the_rules_and_no_event_loop(store: Path, tmp_path: Path) -> None:
    loaded = modules(tmp_path, "recall", "the password is clockwork", "--store", store)
    assert "re2" in loaded
    assert not {"asyncio", "logging", "ssl"} & loaded


@pytest.mark.parametrize("argv", [["doctor"], ["statusline"], ["run", "true"]], ids=" ".join)
def test_commands_that_call_the_daemon_import_no_http_client(argv: list[str], tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    try:
        loaded = modules(tmp_path, argv[0], "--url", f"http://127.0.0.1:{daemon.port}", *argv[1:])
    finally:
        daemon.stop()
    assert "contextfold.cli.daemon.client" in loaded
    assert not COSTLY & loaded


def test_ask_imports_no_costly_module(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Roll back\n\nReturn to the last release that worked.\n")
    modules(tmp_path, "build", "docs")
    loaded = modules(tmp_path, "ask", "roll back", "--cache", tmp_path / "docs" / ".context-cache")
    assert "contextfold.resolve.relevance.asking" in loaded
    assert not COSTLY & loaded


def test_run_resets_the_signals_that_python_ignores(tmp_path: Path) -> None:
    """Python ignores SIGPIPE. A program that inherits this does not end when its reader closes the pipe."""
    program = tmp_path / "signals"
    program.write_text("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
    program.chmod(0o755)
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    daemon = Daemon(tmp_path / "state")
    try:
        url = f"http://127.0.0.1:{daemon.port}"
        argv = [sys.executable, "-m", "contextfold", "run", "--url", url, str(program)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        ran = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    finally:
        daemon.stop()
    ignored = int(ran.stdout.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1)
    assert not ignored & (1 << signal.SIGXFSZ - 1)


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, "x", null, true]}', ' "é" \n', "NaN", "[1]"])
def test_json_is_parsed_as_by_the_standard_library(text: str) -> None:
    import json

    assert repr(parse_json(text)) == repr(json.loads(text)) == repr(parse_json(text.encode()))


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a" 1}', '"\x01"', '"\\x"', "[1] 2", "\ufeff1", "nul", '{"a":1,}'])
def test_invalid_json_is_an_error_even_if_json_is_not_imported(text: str) -> None:
    script = (
        "import sys; from contextfold.common.canonical import Malformed, decode, parse_json\n"
        "assert 'json' not in sys.modules\n"
        "for parse in (parse_json, lambda text: decode(text.encode())):\n"
        "    try: print(parse(sys.argv[1]))\n"
        "    except ValueError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", script, text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]
