"""Error codes are complete, tables are as their tools write them, and the lock files can be used anywhere."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import contextfold
from contextfold import errors
from contextfold.errors import EXIT_CODES, HTTP_STATUSES, JSON_RPC_CODES
from tests.support.machine import GOLDEN, ROOT, SOURCE

LOCKS = ROOT / "requirements"
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


def test_the_frozen_messages_are_unchanged() -> None:
    kinds = [kind for kind in errors.ContextError.__subclasses__() if kind is not errors.FoldError]
    assert {kind.code: kind.message for kind in kinds} == FROZEN_MESSAGES


def test_the_unicode_tables_are_what_the_tool_writes(tmp_path: Path) -> None:
    argv: list[str | Path] = [
        sys.executable,
        ROOT / "tools" / "unicode17.py",
        GOLDEN / "lowercase-unicode17.tsv",
        ROOT / "tools" / "words-unicode17.tsv",
        tmp_path / "written.py",
    ]
    subprocess.run(argv, check=True)
    assert (tmp_path / "written.py").read_bytes() == (SOURCE / "contextfold" / "common" / "unicode17.py").read_bytes()


def test_the_lock_files_contain_no_download_addresses() -> None:
    packages = json.loads((ROOT / "tests" / "clients" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for path, package in packages.items() if path)
    assert not any("://" in path.read_text(encoding="utf-8") for path in LOCKS.glob("*.lock"))


def test_the_small_lock_files_are_subsets_of_the_large_one() -> None:
    large, small, quick = (_pins(LOCKS / f"{name}.lock") for name in ("dev", "runtime", "quick"))
    assert small.items() <= quick.items() <= large.items()


def _pins(path: Path) -> dict[str, str]:
    """The version of each package; which Pythons need it may differ between the files."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"\w", line)]
    return {line.partition("==")[0]: line.partition("==")[2].split()[0] for line in lines}


def test_no_file_names_a_package_registry() -> None:
    names = (r"registry\.np" + "mjs", r"\bpy" + r"pi\.org", "python" + "hosted", "np" + r"mjs\.(com|org)")
    folders = [ROOT / name for name in ("src", "tests", "bench", "docs", "examples", "requirements", "tools", ".ci")]
    paths = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    for path in paths:
        if path.is_file() and "node_modules" not in path.parts and path.suffix != ".pyc":
            assert not re.search("|".join(names), path.read_text(encoding="utf-8", errors="replace")), path


def test_the_distribution_is_named_contextfold() -> None:
    assert importlib.metadata.version("contextfold") == contextfold.__version__
