"""The plugin for Claude Code follows the plugin reference, and has the settings that `context install` writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import contextfold
from contextfold.common.network_address import DAEMON_URL
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS
from tests.support.machine import COMMAND, ROOT

PLUGIN = ROOT / "src" / "contextfold" / "hosts" / "plugin"
CLAUDE = shutil.which("claude")

# These keys are allowed by the reference of plugins and hooks, as far as this plugin uses them.
MANIFEST_KEYS = {"name", "version", "description", "author", "homepage", "repository", "license", "keywords"}
MARKETPLACE_KEYS = {"name", "description", "owner", "plugins", "metadata"}
LISTED_KEYS = MANIFEST_KEYS | {"source", "category", "tags", "strict"}
# SessionStart accepts only commands.
HTTP_EVENTS = {
    *("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch", "PreCompact"),
    *("PostCompact", "Stop"),
}
EVENTS = HTTP_EVENTS | {"SessionStart"}
MATCHED_EVENTS = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}
HANDLER_KEYS = {"command": {"type", "command", "timeout"}, "http": {"type", "url", "timeout"}}
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
DESCRIPTION_MAX = 1024


def read(name: str, folder: Path = PLUGIN) -> Any:
    """A JSON file in which no key may occur twice."""

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads((folder / name).read_text(encoding="utf-8"), object_pairs_hook=unique_keys)


def test_the_manifest_has_only_allowed_keys_and_our_version() -> None:
    manifest = read(".claude-plugin/plugin.json")
    assert manifest.keys() <= MANIFEST_KEYS
    assert NAME.fullmatch(manifest["name"])
    assert manifest["version"] == contextfold.__version__
    assert manifest["license"] == "Apache-2.0"
    assert manifest["author"].keys() <= {"name", "email", "url"}
    assert all(isinstance(manifest[key], str) for key in ("name", "version", "description", "license"))
    assert all(isinstance(word, str) for word in manifest["keywords"])
    assert os.listdir(PLUGIN / ".claude-plugin") == ["plugin.json"]


def test_the_marketplace_lists_the_plugin_with_its_path() -> None:
    marketplace = read(".claude-plugin/marketplace.json", ROOT)
    assert marketplace.keys() <= MARKETPLACE_KEYS
    assert NAME.fullmatch(marketplace["name"])
    assert marketplace["owner"]["name"]
    (listed,) = marketplace["plugins"]
    assert listed.keys() <= LISTED_KEYS
    assert listed["name"] == read(".claude-plugin/plugin.json")["name"]
    assert listed["source"].startswith("./")
    assert (ROOT / listed["source"]).resolve() == PLUGIN


def test_the_definitions_of_the_folding_tools_are_always_in_the_request() -> None:
    """Newer versions of Claude Code otherwise show a model only the names of tools."""
    (server,) = read(".mcp.json")["mcpServers"].values()
    assert server == {"type": "http", "url": f"{DAEMON_URL}/mcp?tools=fold-afterwards", "alwaysLoad": True}


def test_the_hooks_follow_the_reference() -> None:
    file = read("hooks/hooks.json")
    assert file.keys() == {"description", "hooks"}
    assert file["hooks"].keys() == EVENTS
    for event, groups in file["hooks"].items():
        for group in groups:
            assert group.keys() == ({"matcher", "hooks"} if event in MATCHED_EVENTS else {"hooks"})
            for handler in group["hooks"]:
                assert handler.keys() == HANDLER_KEYS[handler["type"]]
                assert handler["type"] == ("http" if event in HTTP_EVENTS else "command")
                assert 0 < handler["timeout"] <= 10
                assert handler.get("url", f"{DAEMON_URL}/hooks/claude-code") == f"{DAEMON_URL}/hooks/claude-code"


# For each case, the program `contextfold` on the path, and what the hook then prints.
STARTS = {
    "there is no such command": ("", "contextfold is not on PATH"),
    "the command gets the input": ('read input\necho "$* $input"\n', 'hook claude-code {"a": 1}'),
    "no daemon runs": (f'exec {COMMAND} "$@" --url http://127.0.0.1:1\n', ""),
}


@pytest.mark.parametrize(("program", "printed"), STARTS.values(), ids=STARTS)
def test_the_hook_of_a_new_session_only_runs_our_command_and_never_fails(
    program: str, printed: str, tmp_path: Path
) -> None:
    (group,) = read("hooks/hooks.json")["hooks"]["SessionStart"]
    (handler,) = group["hooks"]
    if program:
        (tmp_path / "contextfold").write_text(f"#!/bin/sh\n{program}")
        (tmp_path / "contextfold").chmod(0o755)
    argv, env = ["/bin/sh", "-c", handler["command"]], {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=env, input=b'{"a": 1}', capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert printed in done.stdout.decode() if printed else not done.stdout


class TestSkill:
    TEXT = (PLUGIN / "skills" / "context-folding" / "SKILL.md").read_text(encoding="utf-8")

    def test_the_front_matter_has_a_name_and_says_when_to_use_the_skill(self) -> None:
        opening, front, _ = self.TEXT.split("---\n", 2)
        fields = dict(line.split(": ", 1) for line in front.splitlines())
        assert opening == ""
        assert fields.keys() == {"name", "description"}
        assert fields["name"] == "context-folding"
        assert "Use " in fields["description"]
        assert len(fields["description"]) <= DESCRIPTION_MAX
        # Otherwise the text would need quotes.
        assert ": " not in fields["description"]

    def test_the_skill_names_exactly_our_tools(self) -> None:
        assert set(re.findall(r"\bcontext_\w+", self.TEXT)) == {tool.name for tool in FOLD_TOOLS}


@pytest.mark.skipif(CLAUDE is None, reason="Claude Code is not on this machine (npm: @anthropic-ai/claude-code)")
class TestWithClaudeCode:
    def claude(self, home: Path, *argv: str | Path) -> str:
        assert CLAUDE
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1"}
        env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        offline = ["unshare", "--net"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*offline, CLAUDE, *argv], cwd=home, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @pytest.mark.parametrize("folder", [PLUGIN, ROOT])
    def test_claude_code_validates_the_plugin(self, folder: Path, tmp_path: Path) -> None:
        assert "Validation passed" in self.claude(tmp_path, "plugin", "validate", "--strict", folder)

    def test_claude_code_installs_the_plugin_with_all_its_parts(self, tmp_path: Path) -> None:
        self.claude(tmp_path, "plugin", "marketplace", "add", ROOT)
        self.claude(tmp_path, "plugin", "install", "contextfold@contextfold")
        details = self.claude(tmp_path, "plugin", "details", "contextfold@contextfold")
        assert re.search(r"Skills \(1\) +context-folding", details)
        assert re.search(r"MCP servers \(1\) +contextfold", details)
        assert re.search(rf"Hooks \({len(EVENTS)}\) ", details)
