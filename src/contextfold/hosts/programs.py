"""The agent programs ("hosts") that can use the server, as one table, and the entries and commands that connect them.

Pure. A host is connected in one of two ways: with `Stdio` it starts `context serve --stdio` itself; with `Daemon` it
calls a running daemon. A host that can change its own configuration by a command does so; for the others an entry is
written into a file of plain JSON, or printed. docs/hosts.md says what was tested with the real programs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from contextfold.common.network_address import MCP_PATH, parse_daemon_url

SERVER = "contextfold"
# The second server of `context run`, for the documents of the project.
DOCUMENTS_SERVER = "contextfold-docs"
COMMAND = "context"
SERVING = ("serve", "--stdio", "--cache-root")
# The plugin for Claude Code, as its settings name it.
PLUGIN = f"{SERVER}@{SERVER}"
CLAUDE_CODE = "claude-code"
ADDRESS_KEYS = ("url", "httpUrl", "serverUrl")
ENTRY_KEYS = {*ADDRESS_KEYS, "type", "headers", "command", "args", "alwaysLoad", "bearer_token_env_var"}
_OUR_ADDRESS = re.compile(rf"https?://[^?#]+{MCP_PATH}(?:\?tools=[a-z,-]+)?")


class Host(NamedTuple):
    """An agent program. `key` is the object with the servers; `url_key` is the member with an HTTP server's address.

    `program` is the command that changes the host's configuration. Files are below the project and below the user's
    home, where `macos_file` replaces `user_file` on macOS. `variable` is the form in which an entry refers to an
    environment variable; `folder` begins paths inside the project. `runs` is the program that `context run` can start
    with the proxy, and `tools` are the toolsets to offer, if not all.
    """

    name: str
    title: str
    user_file: str = ""
    project_file: str = ""
    program: str = ""
    key: str = "mcpServers"
    macos_file: str = ""
    http_type: str = ""
    stdio_type: str = ""
    url_key: str = "url"
    takes_http: bool = True
    variable: str = ""
    folder: str = ""
    runs: str = ""
    tools: str = ""
    after: str = ""
    # An address that the host opens to add a server, with {entry} or {entry64} for its description.
    link: str = ""


HOSTS = {
    host.name: host
    for host in (
        Host(
            CLAUDE_CODE,
            "Claude Code",
            ".claude.json",
            ".claude/settings.local.json",
            program="claude",
            http_type="http",
            stdio_type="stdio",
            variable="${NAME}",
            runs="claude",
            tools="fold-afterwards",
            after="restart `claude`",
        ),
        Host(
            "codex",
            "Codex",
            ".codex/config.toml",
            program="codex",
            key="mcp_servers",
            variable="NAME",
            runs="codex",
            tools="fold-afterwards",
            after="restart codex; `/mcp` lists the server",
        ),
        Host(
            "opencode",
            "OpenCode",
            ".config/opencode/opencode.json",
            "opencode.json",
            key="mcp",
            http_type="remote",
            stdio_type="local",
            variable="{env:NAME}",
            runs="opencode",
            tools="fold-afterwards",
            after="restart opencode",
        ),
        Host(
            "gemini-cli",
            "Gemini CLI",
            ".gemini/settings.json",
            ".gemini/settings.json",
            program="gemini",
            url_key="httpUrl",
            variable="$NAME",
            runs="gemini",
            tools="fold-afterwards",
            after="restart gemini; `/mcp` lists the server",
        ),
        Host(
            "cursor",
            "Cursor",
            ".cursor/mcp.json",
            ".cursor/mcp.json",
            variable="${env:NAME}",
            folder="${workspaceFolder}/",
            after="switch the server on in Cursor's settings if it is off",
            link=f"cursor://anysphere.cursor-deeplink/mcp/install?name={SERVER}&config={{entry64}}",
        ),
        Host(
            "vscode",
            "VS Code",
            project_file=".vscode/mcp.json",
            program="code",
            key="servers",
            http_type="http",
            stdio_type="stdio",
            variable="${env:NAME}",
            folder="${workspaceFolder}/",
            after="`MCP: List Servers` in the command palette starts and removes the server",
            link="vscode:mcp/install?{entry}",
        ),
        Host(
            "zed",
            "Zed",
            ".config/zed/settings.json",
            ".zed/settings.json",
            key="context_servers",
            after="the server appears in the agent panel's settings",
        ),
        Host(
            "windsurf",
            "Windsurf",
            ".codeium/windsurf/mcp_config.json",
            url_key="serverUrl",
            variable="${env:NAME}",
            after="refresh the list of MCP servers in Windsurf's settings",
        ),
        Host(
            "claude-desktop",
            "Claude Desktop",
            ".config/Claude/claude_desktop_config.json",
            macos_file="Library/Application Support/Claude/claude_desktop_config.json",
            takes_http=False,
            after="quit Claude Desktop and start it again",
        ),
    )
}


class Stdio(NamedTuple):
    """The host starts the server."""

    command: str
    cache_root: str

    @property
    def argv(self) -> list[str]:
        return [self.command, *SERVING, self.cache_root]


class Documents(NamedTuple):
    """The host starts a server that asks the documents of a folder. `program` runs `context`, as words."""

    program: tuple[str, ...]
    folder: str

    @property
    def command(self) -> str:
        return self.program[0]

    @property
    def argv(self) -> list[str]:
        return [*self.program, "serve", "--stdio", "--docs", self.folder]


class Daemon(NamedTuple):
    """The server runs already. `tools` are the toolsets to offer; empty for all that the daemon has."""

    url: str
    token_variable: str = ""
    tools: str = ""

    @property
    def mcp(self) -> str:
        return parse_daemon_url(self.url).mcp + (f"?tools={self.tools}" if self.tools else "")


Wiring = Stdio | Daemon


def entry(host: Host, wiring: Wiring | Documents) -> dict[str, object]:
    """The host's description of our server."""
    if not isinstance(wiring, Daemon):
        kind: dict[str, object] = {"type": host.stdio_type} if host.stdio_type else {}
        if host.stdio_type == "local":
            return kind | {"command": wiring.argv}
        return kind | {"command": wiring.command, "args": wiring.argv[1:]}
    kind = {"type": host.http_type} if host.http_type else {}
    variable = host.variable.replace("NAME", wiring.token_variable)
    headers = {"headers": {"Authorization": f"Bearer {variable}"}} if wiring.token_variable else {}
    return kind | {host.url_key: wiring.mcp} | headers


def install_link(host: Host, wiring: Wiring) -> str:
    """A link that asks the host to add our server, as the host's documentation describes it; empty if it has none."""
    wanted = entry(host, wiring)
    named = json.dumps({"name": SERVER} | wanted)
    encoded = base64.b64encode(json.dumps(wanted).encode()).decode()
    return host.link.replace("{entry64}", quote(encoded, safe="")).replace("{entry}", quote(named, safe=""))


def is_our_entry(value: object) -> bool:
    """Whether an entry is of the kind that install writes, and nobody has added to it."""
    if not isinstance(value, Mapping) or value.keys() - ENTRY_KEYS:
        return False
    address = next((value[key] for key in ADDRESS_KEYS if key in value), None)
    words = [word for key in ("command", "args") for word in _words(value.get(key))]
    is_address = isinstance(address, str) and bool(_OUR_ADDRESS.fullmatch(address))
    return is_address or tuple(words[1 : 1 + len(SERVING)]) == SERVING


def add_command(host: Host, wiring: Wiring, scope: str) -> list[str]:
    """The host's own command that adds our server."""
    if host.program == "code":
        return ["code", "--add-mcp", json.dumps({"name": SERVER} | entry(host, wiring))]
    add = [host.program, "mcp", "add"]
    scoped = [] if host.program == "codex" else ["--scope", scope]
    if isinstance(wiring, Stdio):
        # Behind the dashes nothing is an option of the host.
        return [*add, *scoped, SERVER, "--", *wiring.argv]
    variable = wiring.token_variable
    if host.program == "codex":
        return [*add, SERVER, "--url", wiring.mcp, *(["--bearer-token-env-var", variable] if variable else [])]
    header = ["-H", f"Authorization: Bearer {host.variable.replace('NAME', variable)}"] if variable else []
    return [*add, *scoped, "--transport", "http", SERVER, wiring.mcp, *header]


def remove_command(host: Host, scope: str) -> list[str]:
    """The host's own command that removes our server; VS Code has none."""
    scoped = [] if host.program == "codex" else ["--scope", scope]
    return [host.program, "mcp", "remove", *scoped, SERVER]


def plugin_texts(
    files: Mapping[str, str], daemon: Daemon, command: str, servers: Mapping[str, object] | None = None
) -> dict[str, str]:
    """The plugin's files for a daemon, with further `servers`. `command` runs `context`, as words of a shell."""
    tree = {name: json.loads(text) for name, text in files.items() if name in (MCP_FILE, HOOKS_FILE)}
    headers: dict[str, object] = {}
    if daemon.token_variable:
        headers = {"headers": {"Authorization": f"Bearer ${{{daemon.token_variable}}}"}}
    tree[MCP_FILE]["mcpServers"][SERVER] |= {"url": daemon.mcp} | headers
    tree[MCP_FILE]["mcpServers"] |= servers or {}
    for groups in tree[HOOKS_FILE]["hooks"].values():
        for handler in (handler for group in groups for handler in group["hooks"]):
            if handler["type"] == "http":
                handler["url"] = f"{daemon.url}/hooks/{CLAUDE_CODE}"
                handler.update(headers | ({"allowedEnvVars": [daemon.token_variable]} if headers else {}))
            else:
                token = f" --token-variable {daemon.token_variable}" if headers else ""
                handler["command"] = f"{command} hook {CLAUDE_CODE} --url {daemon.url}{token}"
    return {**files, **{name: json.dumps(value, indent=2) + "\n" for name, value in tree.items()}}


MCP_FILE, HOOKS_FILE = ".mcp.json", "hooks/hooks.json"


def _words(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value] if isinstance(value, str) else []
