"""The agent programs ("hosts") that can use the server: their files, and the entries that install writes there. Pure.

A host is connected in one of two ways. With `Stdio` it starts `context serve --stdio` itself. With `Daemon` it calls a
running daemon, and its hooks report to the daemon what the agent does. docs/hosts.md records which entries were tested
with the real program.
"""

from __future__ import annotations

from contextfold.common.network_address import BadAddress, address_from, is_variable
from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SERVER = "contextfold"
COMMAND = "context"
SERVING = ("serve", "--stdio", "--cache-root")
# `context hook` never takes longer.
HOOK_TIMEOUT_S = 5
SKILL = "skills/context-folding/SKILL.md"
_BARE_WORD = r"[\w@%+=:,./-]+"
_QUOTED_WORD = r"'[^']*'(?:\"'\"'[^']*')*"


class HookTrigger(Record):
    """An event of a host for which a hook is called: by an HTTP request, or by a command if the host makes none."""

    name: str
    matcher: str = ""
    by_http: bool = False


class HookFile(Record):
    """The file in which a host looks for hooks, below a project and below the user's home.

    `is_grouped` means that handlers are lists below matchers, as in Claude Code; `has_type`, that a handler has a type;
    `is_shared`, that a team commits the project's file. `version` is the number that the file must have, if any.
    """

    events: tuple[HookTrigger, ...] = ()
    project_file: str = ""
    user_file: str = ""
    has_comments: bool = False
    is_grouped: bool = False
    has_type: bool = True
    version: int = 0
    is_shared: bool = True


class Host(Record):
    """An agent program. `key` is the object with the servers; `url_key` is the member with an HTTP server's address.

    Files are below the project and, by platform, below the user's home. `variable` is the form in which an entry refers
    to an environment variable. Paths inside the project begin with `folder`. `skills` is the folder for skills.
    """

    name: str
    title: str
    key: str
    user_files: Mapping[str, str] = {}
    project_file: str = ""
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


def _everywhere(path: str) -> dict[str, str]:
    return dict.fromkeys(("linux", "darwin"), path)


HOSTS = {
    host.name: host
    for host in (
        Host(
            "claude-code",
            "Claude Code",
            "mcpServers",
            _everywhere(".claude.json"),
            ".mcp.json",
            http_type="http",
            stdio_type="stdio",
            after="restart `claude`; in a project, approve the server when it asks",
            variable="${NAME}",
            hooks=HookFile(
                (
                    # Claude Code makes no HTTP request for this event.
                    HookTrigger("SessionStart"),
                    HookTrigger("UserPromptSubmit", by_http=True),
                    HookTrigger("PostToolUse", "*", by_http=True),
                    HookTrigger("PostToolUseFailure", "*", by_http=True),
                    # The only event that reports calls which never ran.
                    HookTrigger("PostToolBatch", by_http=True),
                    HookTrigger("PreCompact", by_http=True),
                    HookTrigger("PostCompact", by_http=True),
                    HookTrigger("Stop", by_http=True),
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
            {
                "linux": ".config/Claude/claude_desktop_config.json",
                "darwin": "Library/Application Support/Claude/claude_desktop_config.json",
            },
            takes_http=False,
            after="quit Claude Desktop and start it again",
        ),
        Host(
            "cursor",
            "Cursor",
            "mcpServers",
            _everywhere(".cursor/mcp.json"),
            ".cursor/mcp.json",
            has_comments=True,
            after="switch the server on in Cursor's settings if it is off",
            variable="${env:NAME}",
            folder="${workspaceFolder}/",
            hooks=HookFile(
                tuple(
                    map(
                        HookTrigger,
                        (
                            "sessionStart",
                            "postToolUse",
                            "postToolUseFailure",
                            # The only event that names our session.
                            "afterMCPExecution",
                            "afterAgentResponse",
                            "preCompact",
                        ),
                    )
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
                tuple(map(HookTrigger, ("SessionStart", "PostToolUse", "PreCompact", "Stop"))),
                ".github/hooks/contextfold.json",
                has_comments=True,
            ),
        ),
        Host(
            "codex",
            "Codex",
            "mcp_servers",
            _everywhere(".codex/config.toml"),
            is_toml=True,
            after="restart codex; `/mcp` lists the server",
        ),
        Host(
            "opencode",
            "OpenCode",
            "mcp",
            _everywhere(".config/opencode/opencode.json"),
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
            _everywhere(".gemini/settings.json"),
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
            _everywhere(".config/zed/settings.json"),
            ".zed/settings.json",
            has_comments=True,
            after="the server appears in the agent panel's settings",
        ),
        Host(
            "windsurf",
            "Windsurf",
            "mcpServers",
            _everywhere(".codeium/windsurf/mcp_config.json"),
            url_key="serverUrl",
            after="refresh the list of MCP servers in Windsurf's settings",
            variable="${env:NAME}",
        ),
    )
}


class Stdio(Record):
    """The host starts the server."""

    command: str
    cache_root: str


class Daemon(Record):
    """The server runs already. `command` runs `context`, as one word of a shell command line."""

    command: str
    url: str
    token_variable: str = ""


Wiring = Stdio | Daemon


def entry(host: Host, wiring: Wiring) -> dict[str, object]:
    """The host's description of our server."""
    if isinstance(wiring, Stdio):
        kind: dict[str, object] = {"type": host.stdio_type} if host.stdio_type else {}
        arguments = [*SERVING, wiring.cache_root]
        if host.stdio_type == "local":
            return kind | {"command": [wiring.command, *arguments]}
        return kind | {"command": wiring.command, "args": arguments}
    kind = {"type": host.http_type} if host.http_type else {}
    return kind | {host.url_key: address_from(wiring.url).mcp} | _headers(host.variable, wiring.token_variable)


def hook_files(host: Host, project: str, home: str) -> Iterator[str]:
    """Every file in which a host may have hooks for a project, the user's own first."""
    for folder, file in ((home, host.hooks.user_file), (project, host.hooks.project_file)):
        if file:
            yield f"{folder}/{file}"
    if host.name == "claude-code":
        yield f"{project}/.claude/settings.json"


def elements(host: Host, daemon: Daemon) -> dict[str, object]:
    """Our hooks: the element of each event's array."""
    return {event.name: _element(host, event, daemon) for event in host.hooks.events}


def handlers(host: Host, element: object) -> list[object]:
    """The handlers that an element of a host's array of hooks contains."""
    if not host.hooks.is_grouped:
        return [element]
    inner = element.get("hooks") if isinstance(element, dict) else None
    return inner if isinstance(inner, list) else []


def is_our_entry(host: Host, value: object) -> bool:
    """Whether this is what install writes, for any executable, folder or daemon."""
    if not isinstance(value, dict):
        return False
    match value:
        case {"command": str(command), "args": [*serving, str(root)]} if tuple(serving) == SERVING:
            return bool(value == entry(host, Stdio(command, root)))
        case {"command": [str(command), *serving, str(root)]} if tuple(serving) == SERVING:
            return bool(value == entry(host, Stdio(command, root)))
    url = value.get(host.url_key)
    if isinstance(url, str) and url.endswith("/mcp") and host.takes_http and _is_address(url):
        variable = _variable_in(host.variable, value.get("headers"))
        return bool(value == entry(host, Daemon("", url, variable)))
    return False


def is_our_element(host: Host, name: str | None, value: object) -> bool:
    """Whether this is what install writes for an event, for any executable or daemon."""
    event = next(event for event in host.hooks.events if event.name == name)
    return any(
        daemon is not None and value == _element(host, event, daemon)
        for daemon in (_daemon_in(host, handler) for handler in handlers(host, value))
    )


def is_about_us(host: Host, handler: object) -> bool:
    """Whether a handler calls our daemon, even if install did not write it."""
    import re

    if not isinstance(handler, dict):
        return False
    url, command = handler.get("url"), handler.get("command")
    return (isinstance(url, str) and url.endswith(f"/hooks/{host.name}")) or (
        isinstance(command, str) and bool(re.search(rf"context['\"]? hook {host.name}(?!\S)", command))
    )


def mentions(host: Host, text: str) -> bool:
    """Whether a text could contain our hooks. It need not be valid JSON."""
    return any(f"hook{slash}{host.name}" in text for slash in (" ", "s/", "s\\/"))


def shell_word(text: str) -> str:
    """A text as one word of a shell command line."""
    import re

    return text if re.fullmatch(_BARE_WORD, text, re.ASCII) else "'" + text.replace("'", "'\"'\"'") + "'"


def _element(host: Host, event: HookTrigger, daemon: Daemon) -> object:
    handler = _request(host, daemon) if event.by_http else _command(host, daemon)
    if not host.hooks.is_grouped:
        return handler
    matcher: dict[str, object] = {"matcher": event.matcher} if event.matcher else {}
    return matcher | {"hooks": [handler]}


def _request(host: Host, daemon: Daemon) -> dict[str, object]:
    handler: dict[str, object] = {"type": "http", "url": f"{daemon.url}/hooks/{host.name}", "timeout": HOOK_TIMEOUT_S}
    if daemon.token_variable:
        handler |= _headers(host.variable, daemon.token_variable) | {"allowedEnvVars": [daemon.token_variable]}
    return handler


def _command(host: Host, daemon: Daemon) -> dict[str, object]:
    words = f"{daemon.command} hook {host.name} --url {shell_word(daemon.url)}"
    if daemon.token_variable:
        words += f" --token-variable {daemon.token_variable}"
    kind: dict[str, object] = {"type": "command"} if host.hooks.has_type else {}
    return kind | {"command": words, "timeout": HOOK_TIMEOUT_S}


def _headers(syntax: str, variable: str) -> dict[str, object]:
    return {"headers": {"Authorization": "Bearer " + syntax.replace("NAME", variable)}} if variable else {}


def _daemon_in(host: Host, handler: object) -> Daemon | None:
    """The daemon that one of our handlers calls."""
    import re

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
    """The variable that headers name; empty if they are not what we write."""
    value = headers.get("Authorization") if isinstance(headers, dict) else None
    if not syntax:
        return ""
    before, after = ("Bearer " + syntax).split("NAME")
    name = value.removeprefix(before).removesuffix(after) if isinstance(value, str) else ""
    return name if is_variable(name) else ""


def _is_address(url: str) -> bool:
    try:
        address_from(url)
    except BadAddress:
        return False
    return True
