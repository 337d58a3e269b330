"""The files that a release is made of: the bundle works, and what they say agrees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import contextfold
from contextfold import build
from contextfold.cli.commands import parse_command_line
from tests.support.machine import ROOT
from tools.mcpb import write_bundle
from tools.release_notes import read_notes

DESCRIPTION_MAX = 100
QUESTION = {"name": "context.ask", "arguments": {"query": "what is a token"}}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_bundle_answers_from_a_folder_of_caches_without_any_package(tmp_path: Path) -> None:
    write_bundle(tmp_path / "contextfold.mcpb")
    write_bundle(tmp_path / "again.mcpb")
    assert (tmp_path / "contextfold.mcpb").read_bytes() == (tmp_path / "again.mcpb").read_bytes()
    opened = tmp_path / "opened"
    with zipfile.ZipFile(tmp_path / "contextfold.mcpb") as bundle:
        bundle.extractall(opened)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Tokens\n\nA token is four bytes.\n")
    build(tmp_path / "docs", tmp_path / "caches" / "docs")

    manifest = json.loads((opened / "manifest.json").read_text())
    server = manifest["server"]
    assert (opened / server["entry_point"]).is_file()
    config = json.dumps(server["mcp_config"])
    for name, value in (("__dirname", opened), ("user_config.cache_root", tmp_path / "caches")):
        config = config.replace(f"${{{name}}}", str(value))
    started = json.loads(config)
    assert started["command"] == "python3"
    messages = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": QUESTION},
    )
    done = subprocess.run(
        # Without the packages of this environment.
        [sys.executable, "-I", "-S", *started["args"]],
        input="".join(f"{json.dumps(message)}\n" for message in messages),
        env={**started["env"], "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[1])
    assert "A token is four bytes." in answer["result"]["content"][0]["text"]


def test_every_file_of_a_release_has_the_version_and_the_name() -> None:
    listed = read("server.json")
    (package,) = listed["packages"]
    bundle = read("deploy/mcpb/manifest.json")
    assert {listed["version"], package["version"], bundle["version"]} == {contextfold.__version__}
    assert f"<!-- mcp-name: {listed['name']} -->" in (ROOT / "README.md").read_text()
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", listed["name"])
    assert len(listed["description"]) <= DESCRIPTION_MAX
    # A client starts `uvx contextfold==VERSION`, with these arguments behind it.
    words = [part.get("value") or part["name"] for part in package["packageArguments"]]
    parse_command_line(words)
    assert words == ["serve", "--stdio"]


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    notes = read_notes("Unreleased")
    assert notes.startswith("### ")
    assert "\n## " not in notes
