"""The package builds to the same bytes twice, and every command runs from it in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
from pathlib import Path

from contextfold.cli.commands import COMMANDS
from tests.support.machine import ROOT

# Each command with its exit code in the folder that the test makes. URL, PROJECT and BRANCH are replaced.
RUNS: tuple[tuple[int, str], ...] = (
    (0, "build docs"),
    (0, "ask token --cache docs/.context-cache"),
    (0, "get a.md --cache docs/.context-cache"),
    (0, "ls --cache docs/.context-cache"),
    (0, "build --sources docs --cache docs.cache"),
    (0, "resolve --cache docs.cache --query token --budget 100"),
    (0, "inspect docs.cache"),
    (0, "verify docs.cache"),
    (0, "run --url URL true"),
    (0, "doctor --url URL"),
    (3, "service status"),
    (0, "statusline --url URL"),
    (0, "token ann --token-file tokens"),
    (0, "fold status --all"),
    (0, "fold list --project PROJECT --session demo"),
    (0, "fold show BRANCH"),
    (0, "fold expand BRANCH"),
    (0, "fold misses --all"),
    (0, "fold now done --url URL --project PROJECT"),
    (0, "fold savings --by day"),
    (0, "fold report --project PROJECT --session demo"),
    (0, "fold search cause"),
    (0, "fold rollback BRANCH --dry-run"),
    (0, "recall cause"),
    (0, "store export all.jsonl"),
    (0, "store import all.jsonl --store other.db"),
    (0, "install claude-code --dry-run"),
    (0, "uninstall claude-code --dry-run"),
    (0, "hook claude-code --url URL"),
    (0, "audit docs --json"),
    (0, "open --url URL"),
    (0, "store verify"),
    (0, "store delete --dry-run"),
    (0, "completion bash"),
)
# These run until they are stopped.
LONG_RUNNING = {"serve", "fold tail"}
PROGRAM = """
import json, sys
from contextfold.cli.main import main
for code, argv in json.load(open("runs.json")):
    actual = main(argv)
    print(json.dumps([argv[:2], code, actual]), file=sys.stderr)
    if actual != code: sys.exit(1)
"""


def build_package(source: Path, target: Path, *argv_more: str) -> dict[str, bytes]:
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *argv_more]
    subprocess.run(argv, cwd=source, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in target.iterdir()}


def install(wheel: Path, folder: Path) -> Path:
    """The executables of an environment that has the wheel. Its dependencies are those of this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    argv = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*argv, "--no-cache-dir", "--no-compile", str(wheel)], check=True)
    (site,) = folder.glob("lib/*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_package_is_built_reproducibly_and_every_command_runs_from_it(tmp_path: Path) -> None:
    first = build_package(ROOT, tmp_path / "first")
    (sdist,) = (name for name in first if name.endswith(".tar.gz"))
    (wheel,) = (name for name in first if name.endswith(".whl"))
    with tarfile.open(tmp_path / "first" / sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    second = build_package(source, tmp_path / "second")
    assert second[wheel] == first[wheel]
    assert build_package(source, tmp_path / "third", "-t", "sdist")[sdist] == second[sdist]
    bin_folder = install(tmp_path / "first" / wheel, tmp_path / "environment")
    names = {"context", "contextfold", "contextd", "mcp-context-server"}
    assert names <= {path.name for path in bin_folder.iterdir()}

    home = tmp_path / "home"
    (home / "docs").mkdir(parents=True)
    (home / "docs" / "a.md").write_text("# Tokens\n\nA token is four bytes.\n")
    env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(home)}
    daemon = subprocess.Popen(
        [bin_folder / "contextd", "--port", "0"], cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert daemon.stdout
        url = daemon.stdout.readline().decode().split()[-1].removesuffix("/mcp")
        request = urllib.request.Request(f"{url}/v1/demo", b"{}", {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            session_id = json.load(response)["session_id"]
        with urllib.request.urlopen(f"{url}/v1/sessions/{session_id}") as response:
            session = json.load(response)
        values = {
            "URL": url,
            "PROJECT": session["session"]["project_path"],
            "BRANCH": next(branch["id"] for branch in session["branches"] if branch["status"] == "folded"),
        }
        runs = [(code, [values.get(word, word) for word in words.split()]) for code, words in RUNS]
        assert {command.name for command in COMMANDS} - LONG_RUNNING == {
            " ".join(argv[: 1 + (argv[0] in ("fold", "store"))]) for _, argv in runs
        }
        (home / "runs.json").write_text(json.dumps(runs))
        done = subprocess.run(
            [bin_folder / "python", "-c", PROGRAM],
            cwd=home,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2_000:]
    finally:
        daemon.terminate()
        daemon.wait(timeout=60)
        daemon.stdout.close() if daemon.stdout else None
    assert daemon.returncode == 0
    version = subprocess.run([bin_folder / "contextfold", "--version"], env=env, capture_output=True, check=True)
    assert version.stdout.startswith(b"contextfold ")
