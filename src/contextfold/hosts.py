"""The agent hosts that can start our MCP server: which file, which key, which entry; and that file's text with our
entry in it, or without it again. Text in, text out: reads no file and asks no environment.

Removal is the exact inverse of installation, and nothing is kept anywhere to make it so. The text itself tells what was
there before: an object that was empty is filled right behind its brace (see `contextfold.jsonc`), an object of ours has
white space there, and a file of ours is, character for character, one that `new_file` writes. Its indentation says how
many folders had to be made for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.jsonc import (
    Broken,
    Member,
    Node,
    Style,
    Writable,
    has_comment,
    holds_only,
    put,
    read,
    render,
    replace,
    take,
)
from contextfold.record import Record

SERVER = "contextfold"
SERVING = ("serve", "--stdio", "--cache-root")  # and then the folder
FOLDER_INDENTS = ("  ", "    ", "\t", "        ")  # of a new file, by the number of folders made for it
FOLDERS_MAX = len(FOLDER_INDENTS) - 1


class Unfit(ValueError):
    """A configuration that cannot be edited safely; says why, and what to do."""


class Host(Record):
    name: str
    title: str
    key: str  # of the object that holds the servers
    has_type: bool  # whether an entry names its transport
    has_comments: bool  # whether the host reads JSON with comments
    project_file: str = ""  # below a project; none if empty
    user_files: Mapping[str, str] = {}  # below the user's home, by platform
    after: str = ""  # what a person does next


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
        ),
        Host(
            "vscode",
            "VS Code",
            "servers",
            has_type=True,
            has_comments=True,
            project_file=".vscode/mcp.json",
            after="start the server from the MCP list or from the file itself",
        ),
    )
}


class Place(Record):
    """Where our entry is in a configuration, or would be."""

    root: Node
    servers: Member | None
    ours: Member | None


class Removal(Record):
    text: str | None  # none: the file was made by install, and goes
    folders: int = 0  # how many folders above it were made as well


def entry(host: Host, command: str, cache_root: str) -> dict[str, Writable]:
    """What a host needs to know to start the server."""
    transport: dict[str, Writable] = {"type": "stdio"} if host.has_type else {}
    return transport | {"command": command, "args": [*SERVING, cache_root]}


def new_file(host: Host, command: str, cache_root: str, folders: int) -> str:
    """A configuration with our entry alone."""
    whole = {host.key: {SERVER: entry(host, command, cache_root)}}
    return render(whole, Style("\n", "", FOLDER_INDENTS[folders])) + "\n"


def install(host: Host, text: str, command: str, cache_root: str, *, force: bool = False) -> str:
    """The text with our entry in it; the very same text if it is there already."""
    place = locate(host, text)
    wanted = entry(host, command, cache_root)
    if place.servers is None:
        written = put(text, place.root, host.key, {SERVER: wanted})
    elif place.ours is None:
        written = put(text, place.servers.node, SERVER, wanted)
    elif _holds(place.ours.node, wanted):
        written = text
    elif _is_older(place.ours.node, wanted):
        written = _brought_up_to_date(text, place.ours.node, command, cache_root)
    elif force:
        written = replace(text, place.ours.node, wanted)
    else:
        raise Unfit(
            f"it has an entry {SERVER} that install did not write, or that was added to since; rename it, or add "
            "--force to lose it (uninstall could not bring it back)"
        )
    _check(host, place, written, wanted)
    return written


def is_foreign(host: Host, text: str, command: str, cache_root: str) -> bool:
    """Whether an entry of our name holds what install would lose: somebody else wrote it, or added to it."""
    ours = locate(host, text).ours
    wanted = entry(host, command, cache_root)
    return ours is not None and not _holds(ours.node, wanted) and not _is_older(ours.node, wanted)


def uninstall(host: Host, text: str) -> Removal:
    """The text without our entry, and without what install wrote around it; the very same text if it is not there."""
    place = locate(host, text)
    if place.servers is None or place.ours is None:
        return Removal(text)
    if not _is_older(place.ours.node, entry(host, "", "")):
        raise Unfit(f"its entry {SERVER} is not as install wrote it; if all of it is to go, remove it by hand")
    for folders in range(FOLDERS_MAX + 1):
        if text == _as_new(host, place.ours.node, folders):
            return Removal(None, folders)
    if holds_only(text, place.servers.node, place.ours) and not has_comment(text, place.servers):
        return Removal(take(text, place.root, place.servers))
    return Removal(take(text, place.servers.node, place.ours))


def locate(host: Host, text: str) -> Place:
    """Where our entry is; Unfit if that cannot be said for certain."""
    try:
        root = read(text, comments=host.has_comments)
    except Broken as problem:
        what = "JSON, with or without comments" if host.has_comments else "JSON"
        raise Unfit(f"it is not {what}: {problem}; mend it, or move it away and run this again") from problem
    if not root.is_object:
        raise Unfit("its top level is not an object; make it {} if nothing in it is needed")
    servers = _only(root, host.key)
    if servers is None:
        return Place(root, None, None)
    if not servers.node.is_object:
        raise Unfit(f"its {host.key} is not an object; make it {{}} if nothing in it is needed")
    return Place(root, servers, _only(servers.node, SERVER))


def _only(node: Node, key: str) -> Member | None:
    found = node.named(key)
    if len(found) > 1:
        raise Unfit(f"it has {key} more than once, and only one of them counts; remove the others")
    return found[0] if found else None


def _brought_up_to_date(text: str, old: Node, command: str, cache_root: str) -> str:
    """The text with two strings changed, so that uninstall finds the entry laid out as it was."""
    (commands,), (args,) = old.named("command"), old.named("args")
    changes = [(commands.node, command), (args.node.items[-1], cache_root)]
    for node, value in sorted(changes, key=lambda change: -change[0].start):  # from the end, so that spans stay true
        text = replace(text, node, value)
    return text


def _holds(node: Node, wanted: Mapping[str, Writable]) -> bool:
    """Whether an entry says all that is wanted, whatever else it says."""
    return isinstance(node.value, dict) and wanted.items() <= node.value.items()


def _is_older(node: Node, wanted: Mapping[str, Writable]) -> bool:
    """Whether an entry is one of ours, be it for another executable or folder, and holds nothing else."""
    return (
        isinstance(node.value, dict)
        and len(node.members) == len(wanted)
        and node.value.keys() == wanted.keys()
        and node.value.get("type") == wanted.get("type")
        and isinstance(node.value["command"], str)
        and isinstance(node.value["args"], list)
        and node.value["args"][:-1] == list(SERVING)
        and isinstance(node.value["args"][-1], str)
    )


def _as_new(host: Host, node: Node, folders: int) -> str | None:
    """The file that install would have made for this entry."""
    value = node.value
    if not isinstance(value, dict) or not _is_older(node, entry(host, "", "")):
        return None
    return new_file(host, value["command"], value["args"][-1], folders)


def _check(host: Host, before: Place, written: str, wanted: Mapping[str, Writable]) -> None:
    """A configuration is never written unless it reads as the old one with our entry in it."""
    after = read(written, comments=host.has_comments).value
    old = before.root.value
    assert isinstance(after, dict)
    assert isinstance(old, dict)
    servers, old_servers = after[host.key], old.get(host.key, {})
    assert after | {host.key: None} == old | {host.key: None}
    assert servers | {SERVER: None} == old_servers | {SERVER: None}
    assert wanted.items() <= servers[SERVER].items()
