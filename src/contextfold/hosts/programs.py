"""The agent programs ("hosts") that can use the server: their files, and the entries that install writes there. Pure.

A host is connected in one of two ways. With `Stdio` it starts `context serve --stdio` itself. With `Daemon` it calls a
running daemon, and its hooks report to the daemon what the agent does. docs/hosts.md records which entries were tested
with the real program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from contextfold.common.network_address import parse_daemon_url

SERVER = "contextfold"
COMMAND = "context"
SERVING = ("serve", "--stdio", "--cache-root")
# `context hook` never takes longer.
HOOK_TIMEOUT_S = 5
# The event for which Claude Code runs a command and makes no request, and those for which it needs a matcher.
COMMAND_EVENT = "SessionStart"
MATCHED_EVENTS = ("PostToolUse", "PostToolUseFailure")
SKILL = "skills/context-folding/SKILL.md"
_BARE_WORD = r"[A-Za-z0-9_@%+=:,./-]+"
_QUOTED_WORD = r"'[^']*'(?:\"'\"'[^']*')*"


class HookFile(NamedTuple):
    """The file in which a host looks for hooks, below a project and below the user's home; the events to report.

    `is_grouped` means that handlers are lists below matchers, as in Claude Code; `has_type`, that a handler has a type;
    `is_shared`, that a team commits the project's file. `version` is the number that the file must have, if any.
    """

    events: tuple[str, ...] = ()
    project_file: str = ""
    user_file: str = ""
    has_comments: bool = False
    is_grouped: bool = False
    has_type: bool = True
    version: int = 0
    is_shared: bool = True


class Host(NamedTuple):
    """An agent program. `key` is the object with the servers; `url_key` is the member with an HTTP server's address.

    Files are below the project and below the user's home, where `macos_file` replaces `user_file` on macOS. `variable`
    is the form in which an entry refers to an environment variable. Paths inside the project begin with `folder`.
    `skills` is the folder for skills.
    """

    name: str
    title: str
    key: str
    user_file: str = ""
    project_file: str = ""
    macos_file: str = ""
    http_type: str = ""
    stdio_type: str = ""
    url_key: str = "url"
    takes_http: bool = True
    has_comments: bool = False
    is_toml: bool = False
    after: str = ""
    variable: str = ""
    folder: str = ""
    hooks: HookFile = HookFile()
    skills: str = ""


HOSTS = {
    host.name: host
    for host in (
        Host(
            "claude-code",
            "Claude Code",
            "mcpServers",
            ".claude.json",
            ".mcp.json",
            http_type="http",
            stdio_type="stdio",
            after="restart `claude`; in a project, approve the server when it asks",
            variable="${NAME}",
            hooks=HookFile(
                (
                    COMMAND_EVENT,
                    "UserPromptSubmit",
                    *MATCHED_EVENTS,
                    # The only event that reports calls which never ran.
                    "PostToolBatch",
                    "PreCompact",
                    "PostCompact",
                    "Stop",
                ),
                ".claude/settings.local.json",
                ".claude/settings.json",
                is_grouped=True,
                is_shared=False,
            ),
            skills=".claude",
        ),
        Host(
            "claude-desktop",
            "Claude Desktop",
            "mcpServers",
            ".config/Claude/claude_desktop_config.json",
            macos_file="Library/Application Support/Claude/claude_desktop_config.json",
            takes_http=False,
            after="quit Claude Desktop and start it again",
        ),
        Host(
            "cursor",
            "Cursor",
            "mcpServers",
            ".cursor/mcp.json",
            ".cursor/mcp.json",
            has_comments=True,
            after="switch the server on in Cursor's settings if it is off",
            variable="${env:NAME}",
            folder="${workspaceFolder}/",
            hooks=HookFile(
                (
                    "sessionStart",
                    "postToolUse",
                    "postToolUseFailure",
                    # The only event that names our session.
                    "afterMCPExecution",
                    "afterAgentResponse",
                    "preCompact",
                ),
                ".cursor/hooks.json",
                ".cursor/hooks.json",
                has_comments=True,
                has_type=False,
                version=1,
            ),
        ),
        Host(
            "vscode",
            "VS Code",
            "servers",
            project_file=".vscode/mcp.json",
            http_type="http",
            stdio_type="stdio",
            has_comments=True,
            after="start the server from the MCP list or from the file itself",
            variable="${env:NAME}",
            folder="${workspaceFolder}/",
            hooks=HookFile(
                ("SessionStart", "PostToolUse", "PreCompact", "Stop"),
                ".github/hooks/contextfold.json",
                has_comments=True,
            ),
        ),
        Host(
            "codex",
            "Codex",
            "mcp_servers",
            ".codex/config.toml",
            is_toml=True,
            after="restart codex; `/mcp` lists the server",
        ),
        Host(
            "opencode",
            "OpenCode",
            "mcp",
            ".config/opencode/opencode.json",
            "opencode.json",
            http_type="remote",
            stdio_type="local",
            has_comments=True,
            after="restart opencode",
            variable="{env:NAME}",
        ),
        Host(
            "gemini-cli",
            "Gemini CLI",
            "mcpServers",
            ".gemini/settings.json",
            ".gemini/settings.json",
            url_key="httpUrl",
            has_comments=True,
            after="restart gemini; `/mcp` lists the server",
            variable="$NAME",
        ),
        Host(
            "zed",
            "Zed",
            "context_servers",
            ".config/zed/settings.json",
            ".zed/settings.json",
            has_comments=True,
            after="the server appears in the agent panel's settings",
        ),
        Host(
            "windsurf",
            "Windsurf",
            "mcpServers",
            ".codeium/windsurf/mcp_config.json",
            url_key="serverUrl",
            after="refresh the list of MCP servers in Windsurf's settings",
            variable="${env:NAME}",
        ),
    )
}


class Stdio(NamedTuple):
    """The host starts the server."""

    command: str
    cache_root: str


class Daemon(NamedTuple):
    """The server runs already. `command` runs `context`, as one word of a shell command line."""

    command: str
    url: str
    token_variable: str = ""


Wiring = Stdio | Daemon

# Texts that stand for any path, any command word, any address and any variable, and the pattern of each.
ANY_PATH = "ANY-PATH"
PLACEHOLDERS = {
    ANY_PATH: ".+",
    "ANY-COMMAND": f"(?:{_BARE_WORD}|{_QUOTED_WORD})",
    "http://any-daemon": r"'?https?://[A-Za-z0-9_.~:/\[\]-]+'?",
    "ANY-VARIABLE": "[A-Za-z0-9_]+",
}
ANY_DAEMON = [Daemon("ANY-COMMAND", "http://any-daemon", variable) for variable in ("", "ANY-VARIABLE")]


def entry(host: Host, wiring: Wiring) -> dict[str, object]:
    """The host's description of our server."""
    if isinstance(wiring, Stdio):
        kind: dict[str, object] = {"type": host.stdio_type} if host.stdio_type else {}
        arguments = [*SERVING, wiring.cache_root]
        if host.stdio_type == "local":
            return kind | {"command": [wiring.command, *arguments]}
        return kind | {"command": wiring.command, "args": arguments}
    kind = {"type": host.http_type} if host.http_type else {}
    return kind | {host.url_key: parse_daemon_url(wiring.url).mcp} | _headers(host.variable, wiring.token_variable)


def hook_files(host: Host, project: str, home: str) -> Iterator[str]:
    """Every file in which a host may have hooks for a project, the user's own first."""
    for folder, file in ((home, host.hooks.user_file), (project, host.hooks.project_file)):
        if file:
            yield f"{folder}/{file}"
    if host.name == "claude-code":
        yield f"{project}/.claude/settings.json"


def elements(host: Host, daemon: Daemon) -> dict[str, object]:
    """Our hooks: the element of each event's array."""
    return {event: _element(host, event, daemon) for event in host.hooks.events}


def handlers(host: Host, element: object) -> list[object]:
    """The handlers that an element of a host's array of hooks contains."""
    if not host.hooks.is_grouped:
        return [element]
    inner = element.get("hooks") if isinstance(element, dict) else None
    return inner if isinstance(inner, list) else []


def is_our_entry(host: Host, value: object) -> bool:
    """Whether this is what install writes, for any executable, folder or daemon."""
    wirings = [Stdio(ANY_PATH, ANY_PATH), *(ANY_DAEMON if host.takes_http else ())]
    return any(_fits(value, entry(host, wiring)) for wiring in wirings)


def is_our_element(host: Host, name: str | None, value: object) -> bool:
    """Whether this is what install writes for an event, for any executable or daemon."""
    return any(_fits(value, elements(host, daemon)[name or ""]) for daemon in ANY_DAEMON)


def _fits(value: object, wanted: object) -> bool:
    """Whether a value is the wanted one, with any text of its kind for each placeholder."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        return value.keys() == wanted.keys() and all(_fits(value[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(value, list):
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if isinstance(wanted, str) and isinstance(value, str):
        pattern = re.escape(wanted)
        for placeholder, kind in PLACEHOLDERS.items():
            pattern = pattern.replace(re.escape(placeholder), kind)
        return bool(re.fullmatch(pattern, value, re.DOTALL))
    return value == wanted


def is_about_us(host: Host, handler: object) -> bool:
    """Whether a handler calls our daemon, even if install did not write it."""
    if not isinstance(handler, dict):
        return False
    url, command = handler.get("url"), handler.get("command")
    return (isinstance(url, str) and url.endswith(f"/hooks/{host.name}")) or (
        isinstance(command, str) and bool(re.search(rf"context['\"]? hook {host.name}(?!\S)", command))
    )


def mentions(host: Host, text: str) -> bool:
    """Whether a text could contain our hooks. It need not be valid JSON."""
    return any(f"hook{slash}{host.name}" in text for slash in (" ", "s/", "s\\/"))


def _element(host: Host, event: str, daemon: Daemon) -> object:
    if not host.hooks.is_grouped:
        return _command(host, daemon)
    handler = _command(host, daemon) if event == COMMAND_EVENT else _request(host, daemon)
    matcher: dict[str, object] = {"matcher": "*"} if event in MATCHED_EVENTS else {}
    return matcher | {"hooks": [handler]}


def _request(host: Host, daemon: Daemon) -> dict[str, object]:
    handler: dict[str, object] = {"type": "http", "url": f"{daemon.url}/hooks/{host.name}", "timeout": HOOK_TIMEOUT_S}
    if daemon.token_variable:
        handler |= _headers(host.variable, daemon.token_variable) | {"allowedEnvVars": [daemon.token_variable]}
    return handler


def _command(host: Host, daemon: Daemon) -> dict[str, object]:
    words = f"{daemon.command} hook {host.name} --url {quote(daemon.url)}"
    if daemon.token_variable:
        words += f" --token-variable {daemon.token_variable}"
    kind: dict[str, object] = {"type": "command"} if host.hooks.has_type else {}
    return kind | {"command": words, "timeout": HOOK_TIMEOUT_S}


def _headers(syntax: str, variable: str) -> dict[str, object]:
    return {"headers": {"Authorization": "Bearer " + syntax.replace("NAME", variable)}} if variable else {}
