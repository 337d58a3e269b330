"""The agent hosts that can use our server: which files, which keys, what we write there, and how to know it again.
Values in, values out: reads no file, knows no text and asks no environment.

A host is wired in one of two ways. `Stdio`: it starts `context serve --stdio` itself. `Daemon`: it calls a daemon that
runs, and its hooks tell that daemon what the agent does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from contextfold.common.network_address import BadAddress, address_from, is_variable
from contextfold.common.record import Record
from contextfold.hosts.jsonc import Writable

SERVER = "contextfold"
SERVING = ("serve", "--stdio", "--cache-root")  # and then the folder
HOOK_TIMEOUT_S = 5  # more than `context hook` ever takes
_BARE_WORD = r"[\w@%+=:,./-]+"
_QUOTED_WORD = r"'[^']*'(?:\"'\"'[^']*')*"


class Event(Record):
    """Something that happens in a host and that a hook may be told of."""

    name: str
    matcher: str = ""  # of the tools it is for; none if empty
    by_http: bool = False  # or by a command, where the host makes no requests itself


class Hooks(Record):
    """The file in which a host looks for hooks."""

    events: tuple[Event, ...]
    project_file: str
    has_comments: bool
    is_grouped: bool = False  # handlers are lists below matchers, as in Claude Code
    has_type: bool = True  # whether a handler says what it is
    version: int = 0  # that the file must name; 0 if none
    user_file: str = ""  # below the user's home; none if empty


class Host(Record):
    name: str
    title: str
    key: str  # of the object that holds the servers
    has_type: bool  # whether an entry names its transport
    has_comments: bool  # whether the host reads JSON with comments
    project_file: str = ""  # below a project; none if empty
    user_files: Mapping[str, str] = {}  # below the user's home, by platform
    after: str = ""  # what a person does next
    variable: str = ""  # how an entry names a variable of the environment
    hooks: Hooks | None = None  # none: it is wired by stdio only


HOSTS = {
    host.name: host
    for host in (
        Host(
            "claude-code",
            "Claude Code",
            "mcpServers",
            has_type=True,
            has_comments=False,
            project_file=".mcp.json",
            after="start `claude` in that folder anew and approve the server",
            variable="${NAME}",
            hooks=Hooks(
                (
                    Event("SessionStart"),  # for which it makes no requests
                    Event("UserPromptSubmit", by_http=True),
                    Event("PostToolUse", "*", by_http=True),
                    Event("PostToolUseFailure", "*", by_http=True),
                    Event("PostToolBatch", by_http=True),  # alone tells of calls that never ran
                    Event("PreCompact", by_http=True),
                    Event("PostCompact", by_http=True),
                    Event("Stop", by_http=True),
                ),
                ".claude/settings.json",
                has_comments=False,
                is_grouped=True,
            ),
        ),
        Host(
            "claude-desktop",
            "Claude Desktop",
            "mcpServers",
            has_type=False,
            has_comments=False,
            user_files={
                "linux": ".config/Claude/claude_desktop_config.json",
                "darwin": "Library/Application Support/Claude/claude_desktop_config.json",
            },
            after="quit Claude Desktop and start it anew",
        ),
        Host(
            "cursor",
            "Cursor",
            "mcpServers",
            has_type=False,
            has_comments=True,
            project_file=".cursor/mcp.json",
            user_files=dict.fromkeys(("linux", "darwin"), ".cursor/mcp.json"),
            after="switch the server on in Cursor's settings if it is not",
            variable="${env:NAME}",
            hooks=Hooks(
                tuple(
                    map(
                        Event,
                        (
                            "sessionStart",
                            "postToolUse",
                            "postToolUseFailure",
                            "afterMCPExecution",  # names our session
                            "afterAgentResponse",
                            "preCompact",
                        ),
                    )
                ),
                ".cursor/hooks.json",
                has_comments=True,
                has_type=False,
                version=1,
                user_file=".cursor/hooks.json",
            ),
        ),
        Host(
            "vscode",
            "VS Code",
            "servers",
            has_type=True,
            has_comments=True,
            project_file=".vscode/mcp.json",
            after="start the server from the MCP list or from the file itself",
            variable="${env:NAME}",
            hooks=Hooks(
                tuple(map(Event, ("SessionStart", "PostToolUse", "PreCompact", "Stop"))),
                ".github/hooks/contextfold.json",
                has_comments=True,
            ),
        ),
    )
}


class Stdio(Record):
    """The host starts the server."""

    command: str
    cache_root: str


class Daemon(Record):
    """The server runs already."""

    command: str  # that tells it of what happens, as one word of a shell's line
    url: str  # of its root
    token_variable: str = ""  # holds the token; none if empty


Wiring = Stdio | Daemon


def entry(host: Host, wiring: Wiring) -> dict[str, Writable]:
    """What a host needs to know of the server."""
    if isinstance(wiring, Stdio):
        transport: dict[str, Writable] = {"type": "stdio"} if host.has_type else {}
        return transport | {"command": wiring.command, "args": [*SERVING, wiring.cache_root]}
    transport = {"type": "http"} if host.has_type else {}
    return transport | {"url": address_from(wiring.url).mcp} | _headers(host.variable, wiring.token_variable)


def elements(host: Host, daemon: Daemon) -> dict[str, Writable]:
    """What a host needs to know of the hooks: the element of each event's array."""
    return {event.name: _element(host, event, daemon) for event in _hooks(host).events}


def handlers(host: Host, element: object) -> list[object]:
    """What an element of a host's array of hooks has done."""
    if not _hooks(host).is_grouped:
        return [element]
    inner = element.get("hooks") if isinstance(element, dict) else None
    return inner if isinstance(inner, list) else []


def is_our_entry(host: Host, value: object) -> bool:
    """Whether this is what install writes, for whatever executable, folder or daemon."""
    if not isinstance(value, dict):
        return False
    match value:
        case {"command": str(command), "args": [*serving, str(root)]} if tuple(serving) == SERVING:
            return bool(value == entry(host, Stdio(command, root)))
        case {"url": str(url)} if host.hooks and url.endswith("/mcp"):
            variable = _variable_in(host.variable, value.get("headers"))
            return _is_address(url) and bool(value == entry(host, Daemon("", url, variable)))
    return False


def is_our_element(host: Host, name: str, value: object) -> bool:
    """Whether this is what install writes for an event, for whatever executable or daemon."""
    event = next(event for event in _hooks(host).events if event.name == name)
    return any(
        daemon is not None and value == _element(host, event, daemon)
        for daemon in (_daemon_in(host, handler) for handler in handlers(host, value))
    )


def is_about_us(host: Host, handler: object) -> bool:
    """Whether a handler calls our daemon, whoever wrote it."""
    if not isinstance(handler, dict):
        return False
    url, command = handler.get("url"), handler.get("command")
    return (isinstance(url, str) and url.endswith(f"/hooks/{host.name}")) or (
        isinstance(command, str) and bool(re.search(rf"context['\"]? hook {host.name}(?!\S)", command))
    )


def mentions(host: Host, text: str) -> bool:
    """Whether a text could have hooks of ours in it, as far as that can be told without reading it as JSON."""
    return any(f"hook{slash}{host.name}" in text for slash in (" ", "s/", "s\\/"))


def shell_word(text: str) -> str:
    """A text as one word of a shell's line."""
    return text if re.fullmatch(_BARE_WORD, text, re.ASCII) else "'" + text.replace("'", "'\"'\"'") + "'"


def _hooks(host: Host) -> Hooks:
    assert host.hooks is not None
    return host.hooks


def _element(host: Host, event: Event, daemon: Daemon) -> Writable:
    handler = _request(host, daemon) if event.by_http else _command(host, daemon)
    if not _hooks(host).is_grouped:
        return handler
    matcher: dict[str, Writable] = {"matcher": event.matcher} if event.matcher else {}
    return matcher | {"hooks": [handler]}


def _request(host: Host, daemon: Daemon) -> dict[str, Writable]:
    handler: dict[str, Writable] = {"type": "http", "url": f"{daemon.url}/hooks/{host.name}", "timeout": HOOK_TIMEOUT_S}
    if daemon.token_variable:
        handler |= _headers(host.variable, daemon.token_variable) | {"allowedEnvVars": [daemon.token_variable]}
    return handler


def _command(host: Host, daemon: Daemon) -> dict[str, Writable]:
    words = f"{daemon.command} hook {host.name} --url {shell_word(daemon.url)}"
    if daemon.token_variable:
        words += f" --token-variable {daemon.token_variable}"
    kind: dict[str, Writable] = {"type": "command"} if _hooks(host).has_type else {}
    return kind | {"command": words, "timeout": HOOK_TIMEOUT_S}


def _headers(syntax: str, variable: str) -> dict[str, Writable]:
    return {"headers": {"Authorization": "Bearer " + syntax.replace("NAME", variable)}} if variable else {}


def _daemon_in(host: Host, handler: object) -> Daemon | None:
    """The daemon that a handler of ours calls."""
    if not isinstance(handler, dict):
        return None
    match handler:
        case {"url": str(url)} if url.endswith(f"/hooks/{host.name}"):
            base = url.removesuffix(f"/hooks/{host.name}")
            return Daemon("", base, _variable_in(host.variable, handler.get("headers"))) if _is_address(base) else None
        case {"command": str(command)}:
            words = rf"({_BARE_WORD}|{_QUOTED_WORD}) hook {host.name} --url (\S+?)(?: --token-variable (\w+))?"
            found = re.fullmatch(words, command, re.ASCII)
            base = found[2].strip("'") if found else ""
            return Daemon(found[1], base, found[3] or "") if found and _is_address(base) else None
    return None


def _variable_in(syntax: str, headers: object) -> str:
    """The variable that headers name; none if they are not what we write, which then tells itself."""
    value = headers.get("Authorization") if isinstance(headers, dict) else None
    before, after = ("Bearer " + syntax).split("NAME")
    name = value.removeprefix(before).removesuffix(after) if isinstance(value, str) else ""
    return name if is_variable(name) else ""


def _is_address(url: str) -> bool:
    try:
        address_from(url)
    except BadAddress:
        return False
    return True
