"""Adds this product's server and hooks to the text of a host's configuration file, and removes them. Reads no file.

Removal is the exact inverse of installation and needs no record of the original file. The text shows what was there: in
an object or array that was empty, the new member directly follows the bracket (see `hosts.jsonc`); in one that install
added there is white space; and a file that install created is exactly the output of `_new_file`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from contextfold.hosts.jsonc import (
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
UNENDED = "(The line above had no end.)"
# At most this many hooks are removed from one file; install writes one for each event.
REMOVED_MAX = 1_000
INDENT = "  "


class Unfit(ValueError):
    """A configuration file cannot be edited safely. The message says why and what to do."""


def install_server(host: Host, text: str | None, wiring: Wiring, *, force: bool = False) -> str:
    """Add the server's entry to a text, unless it already has it. None means that the file does not exist."""
    if host.is_toml:
        return install_table(host, text, wiring)
    if text is None:
        return _new_file({host.key: {SERVER: entry(host, wiring)}})
    root = _root(text, has_comments=host.has_comments)
    servers, ours = _locate(host, root)
    wanted = entry(host, wiring)
    if servers is None:
        written = put(text, root, (host.key, {SERVER: wanted}))
    elif ours is None:
        written = put(text, servers.node, (SERVER, wanted))
    elif ours.node.value == wanted or (_holds(ours.node.value, wanted) and not _is_ours(host, ours)):
        written = text
    elif _is_ours(host, ours) or force:
        written = replace(text, ours.node, wanted)
    else:
        raise Unfit(
            f"it has an entry {SERVER} that install did not write, or that was added to since; rename it, or add "
            "--force to lose it (uninstall could not bring it back)"
        )
    _check(host, root, written, wanted)
    return written


def is_foreign(host: Host, text: str, wiring: Wiring) -> bool:
    """Whether install would overwrite an entry of our name that another program wrote or changed."""
    if host.is_toml:
        return False
    _, ours = _locate(host, _root(text, has_comments=host.has_comments))
    return ours is not None and not _holds(ours.node.value, entry(host, wiring)) and not _is_ours(host, ours)


def uninstall_server(host: Host, text: str | None) -> str | None:
    """Remove everything that `install_server` added; None if install created the file, or if there is none."""
    if text is None:
        return None
    if host.is_toml:
        return uninstall_table(host, text)
    root = _root(text, has_comments=host.has_comments)
    servers, ours = _locate(host, root)
    if servers is None or ours is None:
        return text
    if not _is_ours(host, ours):
        raise Unfit(f"its entry {SERVER} is not as install wrote it; if all of it is to go, remove it by hand")
    if root.value == {host.key: {SERVER: ours.node.value}} and _is_new_file(text, root):
        return None
    if holds_only(text, servers.node, ours) and not has_comment(text, servers):
        return take(text, root, servers)
    return take(text, servers.node, ours)


def install_hooks(host: Host, text: str | None, daemon: Daemon, *, force: bool = False) -> str:
    """Add the hooks to a text. None means that the file does not exist. The text may already have the hooks."""
    if text is None:
        # Here the version comes last. In files of other programs it comes first, so `uninstall` recognises its own.
        arrays: Mapping[str, Writable] = {event: [element] for event, element in elements(host, daemon).items()}
        return _new_file({HOOKS: arrays, **_version(host)})
    before = _hooks_root(host, text)
    if (version := _version(host)) and not _holds(before.value, version):
        raise Unfit(
            f'{host.title} reads no hooks without "version": {version["version"]}; add that line, then try again'
        )
    missing: dict[str, Writable] = {}
    written = text
    for event, wanted in elements(host, daemon).items():
        array = _array(_hooks_root(host, written), event)
        if array is None:
            missing[event] = [wanted]
        else:
            written = _with_element(host, written, array, event, wanted, force=force)
    if missing:
        root = _hooks_root(host, written)
        holder = _only(root, HOOKS)
        written = put(written, holder.node, *missing.items()) if holder else put(written, root, (HOOKS, missing))
    _check_hooks(host, before, written, daemon)
    return written


def uninstall_hooks(host: Host, text: str | None) -> str | None:
    """Remove everything that `install_hooks` added; None if install created the file, or if there is none."""
    if text is None:
        return None
    try:
        root = _hooks_root(host, text)
        _refuse_edited(host, root)
    except Unfit:
        if mentions(host, text):
            raise
        # The file is invalid, but it has no hook of this product.
        return text
    if _is_file_of_ours(host, root) and _is_new_file(text, root):
        return None
    for _ in range(REMOVED_MAX):
        shorter = _without_one(host, text)
        if shorter is None:
            return text
        text = shorter
    raise Unfit("it has too many hooks of ours; remove them by hand")


def _with_element(host: Host, text: str, array: Member, event: str, wanted: Writable, *, force: bool) -> str:
    """Add or update the element in an event's array."""
    ours = [member for member in array.node.members if is_our_element(host, event, member.node.value)]
    if len(ours) > 1:
        raise Unfit(f"its {HOOKS} for {event} have ours more than once; remove all but one of them")
    if ours:
        return text if ours[0].node.value == wanted else replace(text, ours[0].node, wanted)
    (handler,) = handlers(host, wanted)
    edited = _edited(host, array)
    if not edited:
        return put(text, array.node, (None, wanted))
    if all(_holds(node.value, handler) for node in edited):
        return text
    if not force or len(edited) > 1:
        raise Unfit(
            f"its hook for {event} is not as install wrote it; take it out by hand, or add --force to lose the change"
        )
    assert isinstance(handler, Mapping)
    return replace(text, edited[0], handler)


def _without_one(host: Host, text: str) -> str | None:
    """Remove the last of our elements; None if there is none."""
    root = _hooks_root(host, text)
    holder = _only(root, HOOKS)
    for array in reversed(holder.node.members if holder else ()):
        if array.key not in _events(host):
            continue
        for element in reversed(array.node.members):
            if not is_our_element(host, array.key, element.node.value):
                continue
            if not holds_only(text, array.node, element) or has_comment(text, array):
                return take(text, array.node, element)
            assert holder is not None
            if not holds_only(text, holder.node, array) or has_comment(text, holder):
                return take(text, holder.node, array)
            return take(text, root, holder)
    return None


def _root(text: str, *, has_comments: bool) -> Node:
    try:
        root = read(text, comments=has_comments)
    except Broken as problem:
        what = "JSON, with or without comments" if has_comments else "JSON"
        raise Unfit(f"it is not {what}: {problem}; correct it, or move it away and run this again") from problem
    if not root.is_object:
        raise Unfit("its top level is not an object; make it {} if nothing in it is needed")
    return root


def _locate(host: Host, root: Node) -> tuple[Member | None, Member | None]:
    """The servers and our entry among them. Raises Unfit if a key is repeated."""
    servers = _only(root, host.key)
    if servers is None:
        return None, None
    if not servers.node.is_object:
        raise Unfit(f"its {host.key} is not an object; make it {{}} if nothing in it is needed")
    return servers, _only(servers.node, SERVER)


def _hooks_root(host: Host, text: str) -> Node:
    """Parse a file of hooks. Raises Unfit if its arrays cannot be edited safely."""
    assert host.hooks is not None
    root = _root(text, has_comments=host.hooks.has_comments)
    holder = _only(root, HOOKS)
    if holder and not holder.node.is_object:
        raise Unfit(f"its {HOOKS} is not an object; make it {{}} if nothing in it is needed")
    for event in _events(host):
        _array(root, event)
    return root


def _array(root: Node, event: str) -> Member | None:
    """The array of elements for an event."""
    holder = _only(root, HOOKS)
    array = _only(holder.node, event) if holder else None
    if array and not isinstance(array.node.value, list):
        raise Unfit(f"its {HOOKS} for {event} are not a list; make it [] if nothing in it is needed")
    return array


def _only(node: Node, key: str) -> Member | None:
    members = node.named(key)
    if len(members) > 1:
        raise Unfit(f"it has {key} more than once, and only one of them counts; remove the others")
    return members[0] if members else None


def _edited(host: Host, array: Member) -> list[Node]:
    """The handlers of an event that call our daemon but were changed after install wrote them."""
    edited = []
    for member in array.node.members:
        nodes = [member.node]
        if host.hooks and host.hooks.is_grouped:
            nodes = [inner.node for group in member.node.named(HOOKS) for inner in group.node.members]
        assert array.key is not None
        if not is_our_element(host, array.key, member.node.value):
            edited += [node for node in nodes if is_about_us(host, node.value)]
    return edited


def _refuse_edited(host: Host, root: Node) -> None:
    for event in _events(host):
        array = _array(root, event)
        if array and _edited(host, array):
            raise Unfit(f"its hook for {event} is not as install wrote it; if it is to go, remove it by hand")


def _events(host: Host) -> tuple[str, ...]:
    return tuple(event.name for event in host.hooks.events) if host.hooks else ()


def _version(host: Host) -> dict[str, Writable]:
    return {"version": host.hooks.version} if host.hooks and host.hooks.version else {}


def _is_ours(host: Host, ours: Member) -> bool:
    """Whether install wrote an entry and nothing was added to it, not even a repeated key."""
    value = ours.node.value
    return is_our_entry(host, value) and isinstance(value, dict) and len(ours.node.members) == len(value)


def _is_file_of_ours(host: Host, root: Node) -> bool:
    """Whether a file has only our hooks."""
    assert isinstance(root.value, dict)
    arrays = root.value.get(HOOKS)
    return (
        list(root.value.items()) == [(HOOKS, arrays), *_version(host).items()]
        and isinstance(arrays, dict)
        and tuple(arrays) == _events(host)
        and all(len(array) == 1 and is_our_element(host, event, array[0]) for event, array in arrays.items())
    )


def install_table(host: Host, text: str | None, wiring: Wiring) -> str:
    """Add our table at the end of a TOML file, or replace it."""
    _parsed(text or "")
    if text is not None:
        text = uninstall_table(host, text)
    head = f"\n{TABLE_COMMENT}" if text is None or text.endswith("\n") or not text else f"\n{TABLE_COMMENT} {UNENDED}"
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry(host, wiring).items())
    written = f"{text or ''}{head}\n[{host.key}.{SERVER}]\n{table}"
    written = written if text else written.lstrip("\n")
    servers = _parsed(written).get(host.key)
    assert isinstance(servers, dict)
    assert servers[SERVER] == entry(host, wiring)
    return written


def uninstall_table(host: Host, text: str) -> str | None:
    """Remove the table that install wrote from a TOML file; None if nothing else is in it."""
    comment = rf"(^|\n){re.escape(TABLE_COMMENT)}( {re.escape(UNENDED)})?\n"
    table = re.search(rf"{comment}\[{host.key}\.{SERVER}\]\n(?:[a-z_]+ = .*\n)+", text)
    if not table:
        if SERVER in _parsed(text).get(host.key, {}):
            raise Unfit(f"its table {host.key}.{SERVER} is not as install wrote it; remove or rename it by hand")
        return text
    rest = text[: table.start()] + text[table.end() :]
    return rest or None


def _parsed(text: str) -> dict[str, dict[str, object]]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise Unfit(f"it is not TOML: {problem}; correct it, or move it away and run this again") from problem


def _new_file(value: Mapping[str, Writable]) -> str:
    return render(value, Style("\n", "", INDENT)) + "\n"


def _is_new_file(text: str, root: Node) -> bool:
    """Whether a text is exactly the content of a file that install creates."""
    assert isinstance(root.value, dict)
    return text == _new_file(root.value)


def _holds(value: object, wanted: object) -> bool:
    """Whether a value has at least the wanted members."""
    return isinstance(value, dict) and isinstance(wanted, Mapping) and wanted.items() <= value.items()


def _check(host: Host, before: Node, written: str, wanted: Mapping[str, Writable]) -> None:
    """Assert that the new text parses to the old configuration with our entry added."""
    after = read(written, comments=host.has_comments).value
    old = before.value
    assert isinstance(after, dict)
    assert isinstance(old, dict)
    servers, old_servers = after[host.key], old.get(host.key, {})
    assert after | {host.key: None} == old | {host.key: None}
    assert servers | {SERVER: None} == old_servers | {SERVER: None}
    assert wanted.items() <= servers[SERVER].items()


def _check_hooks(host: Host, before: Node, written: str, daemon: Daemon) -> None:
    """Assert that the new text parses to the old hooks with ours added."""
    after, old = _hooks_root(host, written).value, before.value
    assert isinstance(after, dict)
    assert isinstance(old, dict)
    arrays, old_arrays = after[HOOKS], old.get(HOOKS, {})
    ours = dict.fromkeys(_events(host))
    assert after | {HOOKS: None} == old | {HOOKS: None}
    assert arrays | ours == old_arrays | ours
    for event, wanted in elements(host, daemon).items():
        (handler,) = handlers(host, wanted)
        assert any(_holds(had, handler) for element in arrays[event] for had in handlers(host, element))
        assert _others(host, arrays[event]) == _others(host, old_arrays.get(event, []))


def _others(host: Host, array: list[object]) -> list[object]:
    """The handlers that are not ours."""
    return [handler for element in array for handler in handlers(host, element) if not is_about_us(host, handler)]
