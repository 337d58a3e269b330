"""A project with the configuration files of a host, and a second, independent parser for those files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from tests.support.machine import COMMAND, Call, Ran

FILES = {"claude-code": ".mcp.json", "cursor": ".cursor/mcp.json", "vscode": ".vscode/mcp.json"}
HOOK_FILES = {
    "claude-code": ".claude/settings.local.json",
    "cursor": ".cursor/hooks.json",
    "vscode": ".github/hooks/contextfold.json",
}
EVENTS = {
    host: names.split()
    for host, names in {
        "claude-code": "SessionStart UserPromptSubmit PostToolUse PostToolUseFailure PostToolBatch PreCompact"
        " PostCompact Stop",
        "cursor": "sessionStart postToolUse postToolUseFailure afterMCPExecution afterAgentResponse preCompact",
        "vscode": "SessionStart PostToolUse PreCompact Stop",
    }.items()
}
URL = "http://localhost:9090"
KEYS = {"claude-code": "mcpServers", "claude-desktop": "mcpServers", "cursor": "mcpServers", "vscode": "servers"}
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
STRING_OR_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])')


def entry(host: str, caches: Path, *, is_shared: bool = True) -> dict[str, object]:
    """The entry of a server that the host starts. A shared file has no path of this machine."""
    transport = {"type": "stdio"} if host in ("claude-code", "vscode") else {}
    folder = "${workspaceFolder}/" if host in ("cursor", "vscode") else ""
    root = f"{folder}{caches.name}" if is_shared else str(caches)
    args = ["serve", "--stdio", "--cache-root", root]
    return {**transport, "command": "context" if is_shared else str(COMMAND), "args": args}


def daemon_entry(host: str, url: str = URL, variable: str = "") -> dict[str, object]:
    transport = {"type": "http"} if host in ("claude-code", "vscode") else {}
    return {**transport, "url": f"{url}/mcp", **headers(host, variable)}


def headers(host: str, variable: str) -> dict[str, object]:
    reference = f"${{{variable}}}" if host == "claude-code" else f"${{env:{variable}}}"
    return {"headers": {"Authorization": f"Bearer {reference}"}} if variable else {}


def hook_elements(host: str, url: str = URL, variable: str = "") -> dict[str, Any]:
    """The element that the array of each event must get, in the form that the hosts document."""
    command = str(COMMAND) if host == "claude-code" else "context"
    words = f"{command} hook {host} --url {url}" + (f" --token-variable {variable}" if variable else "")
    by_command: dict[str, object] = {"type": "command", "command": words, "timeout": 5}
    if host == "vscode":
        return dict.fromkeys(EVENTS[host], by_command)
    if host == "cursor":
        del by_command["type"]
        return dict.fromkeys(EVENTS[host], by_command)
    allowed: dict[str, object] = {"allowedEnvVars": [variable]} if variable else {}
    request = {"type": "http", "url": f"{url}/hooks/{host}", "timeout": 5, **headers(host, variable), **allowed}
    elements: dict[str, Any] = {event: {"hooks": [request]} for event in EVENTS[host]}
    for event in ("PostToolUse", "PostToolUseFailure"):
        elements[event] = {"matcher": "*", **elements[event]}
    return {**elements, "SessionStart": {"hooks": [by_command]}}


def parse_commented_json(text: str) -> Any:
    """The value of a JSON text with comments, parsed independently of the product's code."""
    bare = STRING_OR_COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " ", text.removeprefix("\ufeff"))
    return json.loads(STRING_OR_LAST_COMMA.sub(lambda m: m[0] if m[0][0] == '"' else "", bare))


def comments_of(text: str) -> list[str]:
    return [match for match in STRING_OR_COMMENT.findall(text) if match[0] == "/"]


class HostProject:
    """A folder with the files of a host, and the two commands that change them."""

    def __init__(self, folder: Path, host: str, call: Call, caches: Path) -> None:
        self.folder, self.host, self._call, self.caches = folder, host, call, caches
        self.file = folder / FILES[host]
        self.hooks = folder / HOOK_FILES[host]
        self.skill = folder / ".claude" / "skills" / "context-folding" / "SKILL.md"

    def write(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(text.encode())

    def write_hooks(self, text: str) -> None:
        self.hooks.parent.mkdir(parents=True, exist_ok=True)
        self.hooks.write_bytes(text.encode())

    def text(self) -> str:
        return self.file.read_bytes().decode()

    @property
    def install_argv(self) -> list[str]:
        return ["install", self.host, "--project", str(self.folder), "--cache-root", str(self.caches)]

    def install(self, *argv: object) -> Ran:
        return self._call(*self.install_argv, *argv)

    def install_daemon(self, *argv: object) -> Ran:
        return self._call("install", self.host, "--project", self.folder, *argv)

    def hooks_text(self) -> str:
        return self.hooks.read_bytes().decode()

    def uninstall(self, *argv: object) -> Ran:
        return self._call("uninstall", self.host, "--project", self.folder, *argv)

    def everything(self) -> dict[str, bytes]:
        """Every file below the folder."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
