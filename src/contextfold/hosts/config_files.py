"""Adds this product's server and hooks to the text of a host's configuration file, and removes them. Reads no file.

Removal is the exact inverse of installation and needs no record of the original file. The text shows what was there: in
an object or array that was empty, the new member directly follows the bracket (see `hosts.jsonc`); in one that install
added there is white space; and a file that install created is exactly the output of `_new_file`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import NamedTuple

from contextfold.hosts.jsonc import Broken, Member, Node, has_comment, holds_only, put, read, render, replace, take
from contextfold.hosts.programs import (
    SERVER,
    Daemon,
    Host,
    Wiring,
    elements,
    entry,
    handlers,
    is_about_us,
    is_our_element,
    is_our_entry,
    mentions,
)

HOOKS = "hooks"
TABLE_COMMENT = "# Added by `context install`; `context uninstall` removes it."


class Unfit(ValueError):
    """A configuration file cannot be edited safely. The message says why and what to do."""


def install_server(host: Host, text: str | None, wiring: Wiring, *, force: bool = False) -> str:
    """Add the server's entry to a text, unless it already has it. None means that the file does not exist."""
    if host.is_toml:
        return _install_table(host, text, wiring)
    wanted = entry(host, wiring)
    if text is None:
        return _new_file({host.key: {SERVER: wanted}})
    root, servers, ours = _parse_servers(host, text)
    if ours is None:
        added = (servers.node, SERVER, wanted) if servers else (root, host.key, {SERVER: wanted})
        written = put(text, *added)
        assert uninstall_server(host, written) == text
        return written
    if ours.node.value == wanted or (_has_members(ours.node.value, wanted) and not _is_ours(host, ours)):
        return text
    if _is_ours(host, ours) or force:
        return replace(text, ours.node, wanted)
    raise Unfit(
        f"it has an entry {SERVER} that install did not write, or that was added to since; rename it, or add "
        "--force to lose it (uninstall could not bring it back)"
    )


def uninstall_server(host: Host, text: str | None) -> str | None:
    """Remove everything that `install_server` added; None if install created the file, or if there is none."""
    if text is None:
        return None
    if host.is_toml:
        return _uninstall_table(host, text)
    root, servers, ours = _parse_servers(host, text)
    if servers is None or ours is None:
        return text
    if not _is_ours(host, ours):
        raise Unfit(f"its entry {SERVER} is not as install wrote it; if all of it is to go, remove it by hand")
    if text == _new_file({host.key: {SERVER: ours.node.value}}):
        return None
    return _remove(text, root, servers, ours)


def install_hooks(host: Host, text: str | None, daemon: Daemon, *, force: bool = False) -> str:
    """Add the hooks to a text. None means that the file does not exist. The text may already have the hooks."""
    if text is None:
        return _new_hooks_file(host, {event: [element] for event, element in elements(host, daemon).items()})
    hooks = _parse_hooks(host, text)
    if not _has_members(hooks.root.value, _version(host)):
        raise Unfit(
            f'{host.title} reads no hooks without "version": {host.hooks.version}; add that line, then try again'
        )
    written = text
    # The first event is added last, because every addition comes first.
    for event, wanted in reversed(elements(host, daemon).items()):
        hooks = _parse_hooks(host, written)
        if event in hooks.arrays:
            written = _put_element(host, written, hooks.arrays[event], wanted, force=force)
        elif hooks.holder:
            written = put(written, hooks.holder.node, event, [wanted])
        else:
            written = put(written, hooks.root, HOOKS, {event: [wanted]})
    assert mentions(host, text) or uninstall_hooks(host, written) == text
    return written


def uninstall_hooks(host: Host, text: str | None) -> str | None:
    """Remove everything that `install_hooks` added; None if install created the file, or if there is none."""
    if text is None:
        return None
    try:
        ours = _our_hooks(host, _parse_hooks(host, text))
    except Unfit:
        if mentions(host, text):
            raise
        # The file is invalid, but it has no hook of this product.
        return text
    if ours and text == _new_hooks_file(host, {array.key: [element.node.value] for array, element in ours}):
        return None
    for _ in ours:
        # Every removal moves what is left, so the text is parsed again.
        hooks = _parse_hooks(host, text)
        assert hooks.holder
        text = _remove(text, hooks.root, hooks.holder, *_our_hooks(host, hooks)[-1])
    return text


def _put_element(host: Host, text: str, array: Member, wanted: object, *, force: bool) -> str:
    """Add or update the element in an event's array."""
    ours = [member for member in array.node.members if is_our_element(host, array.key, member.node.value)]
    if len(ours) > 1:
        raise Unfit(f"its {HOOKS} for {array.key} have ours more than once; remove all but one of them")
    if ours:
        return text if ours[0].node.value == wanted else replace(text, ours[0].node, wanted)
    (handler,) = handlers(host, wanted)
    edited = _find_edited(host, array)
    if not edited:
        return put(text, array.node, None, wanted)
    if all(_has_members(node.value, handler) for node in edited):
        return text
    if not force or len(edited) > 1:
        raise Unfit(
            f"its hook for {array.key} is not as install wrote it; take it out by hand, or add --force to lose the "
            "change"
        )
    return replace(text, edited[0], handler)


class _Hooks(NamedTuple):
    """A parsed file of hooks: the object that has them, and in it the array of each event that concerns us."""

    root: Node
    holder: Member | None
    arrays: Mapping[str, Member]


def _parse_hooks(host: Host, text: str) -> _Hooks:
    """Parse a file of hooks. Raises Unfit if its arrays cannot be edited safely."""
    root = _root(text, has_comments=host.hooks.has_comments)
    holder = _object(root, HOOKS)
    arrays = {}
    for event in host.hooks.events if holder else ():
        assert holder
        array = _single_member(holder.node, event)
        if array and not isinstance(array.node.value, list):
            raise Unfit(f"its {HOOKS} for {event} are not a list; make it [] if nothing in it is needed")
        if array:
            arrays[event] = array
    return _Hooks(root, holder, arrays)


def _parse_servers(host: Host, text: str) -> tuple[Node, Member | None, Member | None]:
    """Parse a file of servers: its root, the object that has them, and our entry in it."""
    root = _root(text, has_comments=host.has_comments)
    servers = _object(root, host.key)
    return root, servers, _single_member(servers.node, SERVER) if servers else None


def _root(text: str, *, has_comments: bool) -> Node:
    try:
        root = read(text, comments=has_comments)
    except Broken as problem:
        what = "JSON, with or without comments" if has_comments else "JSON"
        raise Unfit(f"it is not {what}: {problem}; correct it, or move it away and run this again") from problem
    if not root.is_object:
        raise Unfit("its top level is not an object; make it {} if nothing in it is needed")
    return root


def _object(node: Node, key: str) -> Member | None:
    member = _single_member(node, key)
    if member and not member.node.is_object:
        raise Unfit(f"its {key} is not an object; make it {{}} if nothing in it is needed")
    return member


def _single_member(node: Node, key: str) -> Member | None:
    members = node.named(key)
    if len(members) > 1:
        raise Unfit(f"it has {key} more than once, and only one of them counts; remove the others")
    return members[0] if members else None


def _our_hooks(host: Host, hooks: _Hooks) -> list[tuple[Member, Member]]:
    """Our elements with their arrays, in the order of the text. Raises Unfit if one was changed."""
    ours = []
    for event, array in hooks.arrays.items():
        if _find_edited(host, array):
            raise Unfit(f"its hook for {event} is not as install wrote it; if it is to go, remove it by hand")
        ours += [(array, each) for each in array.node.members if is_our_element(host, event, each.node.value)]
    return sorted(ours, key=lambda found: found[1].start)


def _find_edited(host: Host, array: Member) -> list[Node]:
    """The handlers of an event that call our daemon but were changed after install wrote them."""
    edited = []
    for member in array.node.members:
        nodes = [member.node]
        if host.hooks.is_grouped:
            nodes = [inner.node for group in member.node.named(HOOKS) for inner in group.node.members]
        if not is_our_element(host, array.key, member.node.value):
            edited += [node for node in nodes if is_about_us(host, node.value)]
    return edited


def _is_ours(host: Host, ours: Member) -> bool:
    """Whether install wrote an entry and nothing was added to it, not even a repeated key."""
    value = ours.node.value
    return is_our_entry(host, value) and isinstance(value, dict) and len(ours.node.members) == len(value)


def _has_members(value: object, wanted: object) -> bool:
    """Whether a value has at least the wanted members."""
    return isinstance(value, dict) and isinstance(wanted, Mapping) and wanted.items() <= value.items()


def _remove(text: str, root: Node, *path: Member) -> str:
    """Remove the last member of a path, and with it the objects and arrays above it that install added."""
    at = len(path) - 1
    while at and holds_only(text, path[at - 1].node, path[at]) and not has_comment(text, path[at - 1]):
        at -= 1
    return take(text, path[at - 1].node if at else root, path[at])


def _version(host: Host) -> dict[str, object]:
    return {"version": host.hooks.version} if host.hooks.version else {}


def _new_hooks_file(host: Host, arrays: Mapping[str | None, object]) -> str:
    # The version comes first here. `put` adds hooks before the version that a file had, so `uninstall` recognises
    # our own files.
    return _new_file({**_version(host), HOOKS: arrays})


def _new_file(value: Mapping[str, object]) -> str:
    return render(value) + "\n"


def _install_table(host: Host, text: str | None, wiring: Wiring) -> str:
    """Add our table at the end of a TOML file, or replace it."""
    _parse_toml(text or "")
    rest = _uninstall_table(host, text or "") or ""
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry(host, wiring).items())
    written = (f"{rest}\n" if rest else "") + f"{TABLE_COMMENT}\n[{host.key}.{SERVER}]\n{table}"
    assert _parse_toml(written)[host.key][SERVER] == entry(host, wiring)
    return written


def _uninstall_table(host: Host, text: str) -> str | None:
    """Remove the table that install wrote from a TOML file; None if nothing else is in it."""
    # The line break before the comment was added with it, whether or not the last line had one.
    comment = rf"(^|\n){re.escape(TABLE_COMMENT)}\n"
    table = re.search(rf"{comment}\[{host.key}\.{SERVER}\]\n(?:[a-z_]+ = .*\n)+", text)
    if not table:
        if SERVER in _parse_toml(text).get(host.key, {}):
            raise Unfit(f"its table {host.key}.{SERVER} is not as install wrote it; remove or rename it by hand")
        return text
    return text[: table.start()] + text[table.end() :] or None


def _parse_toml(text: str) -> dict[str, dict[str, object]]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise Unfit(f"it is not TOML: {problem}; correct it, or move it away and run this again") from problem
