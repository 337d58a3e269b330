"""The configuration files of agent programs: where they are, and how one entry of plain JSON gets in and out again.

A file that is not plain JSON is never written: it may have comments, which would be lost.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contextfold.cli.parser import UsageError
from contextfold.errors import StorageFailed
from contextfold.hosts.programs import COMMAND, HOSTS, Host
from contextfold.resolve.files import StorageErrors, replace_file, storage_failed

CONFIG_BYTES_MAX = 8 << 20
WRITABLE_BY_ANYBODY = 0o222
INDENT = 2
# The variable that names another folder, and the folder below the home that it replaces, where a host has its own.
FOLDERS = {"codex": ("CODEX_HOME", ".codex/"), "gemini-cli": ("GEMINI_CLI_HOME", "")}
# What JSON with comments has besides JSON. Strings are matched first, so nothing inside of them is.
_STRING = r'("(?:[^"\\\n]|\\.)*")'
_COMMENTS = re.compile(rf"{_STRING}|//[^\n]*|/\*[\s\S]*?\*/")
_TRAILING_COMMAS = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")


class NotPlainJson(StorageFailed):
    """The file has comments, is broken, or has something else where an object is expected."""


class HostFile(NamedTuple):
    """The file with a host's servers; empty for one of the user's that only the host itself knows. `project` is empty
    if it is the user's own."""

    host: Host
    path: str
    project: str


def file_of(args: argparse.Namespace) -> HostFile:
    """The user's file, or that of the project which --project names."""
    host = HOSTS[args.host]
    if args.project is not None and args.user:
        raise UsageError("--project and --user exclude each other; give one of them")
    if args.project is not None and not host.project_file:
        raise UsageError(f"--project is not for {host.name}, which has files of the user only; leave it out")
    if args.project is None:
        return HostFile(host, user_file(host), "")
    project = absolute(args.project)
    if not os.path.isdir(project):
        raise StorageFailed(f"there is no folder {project}; give --project the folder that holds the project")
    path = os.path.join(project, host.project_file)
    # The link may have come with a cloned repository.
    real, folder = os.path.realpath(path), os.path.realpath(project)
    if os.path.commonpath([real, folder]) != folder:
        raise StorageFailed(
            f"{path} leads by a link to {real}, outside of the project, so it is left alone; remove the link first"
        )
    return HostFile(host, path, project)


def user_file(host: Host) -> str:
    if sys.platform not in ("linux", "darwin"):
        raise StorageFailed(f"the configuration file of {host.title} on {sys.platform} is not known to us")
    below_home = (sys.platform == "darwin" and host.macos_file) or host.user_file
    variable, folder = FOLDERS.get(host.name, ("XDG_CONFIG_HOME", ".config/"))
    base = os.environ.get(variable, "")
    if below_home.startswith(folder) and os.path.isabs(base):
        return os.path.join(base, below_home.removeprefix(folder))
    return os.path.join(home(), below_home) if below_home else ""


def home() -> str:
    folder = os.path.expanduser("~")
    if not os.path.isabs(folder) or os.environ.get("HOME") == "":
        raise StorageFailed("there is no home folder; set HOME to yours, then run this again")
    return folder


def claude_settings(project: str) -> str:
    """Claude Code's settings file of the user, or the one of a project that is shared with nobody."""
    if project:
        return os.path.join(project, ".claude", "settings.local.json")
    return os.path.join(os.environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home(), ".claude"), "settings.json")


def claude_settings_here() -> list[str]:
    """The settings files of Claude Code for this folder. A later one counts more."""
    project = os.getcwd()
    return [claude_settings(""), os.path.join(project, ".claude", "settings.json"), claude_settings(project)]


def claude_variables() -> dict[str, str]:
    """The variables in Claude Code's settings for this folder, which come before those of the environment."""
    variables: dict[str, str] = {}
    for path in claude_settings_here():
        env = find_member(read_if_valid(path), ("env",))
        if isinstance(env, dict):
            variables |= {name: value for name, value in env.items() if isinstance(value, str)}
    return variables


def read_if_valid(path: str, *, has_comments: bool = False) -> object:
    """The object in a file; None if there is none that can be read."""
    try:
        return read_object(path, has_comments=has_comments)
    except StorageFailed:
        return None


def read_object(path: str, *, has_comments: bool = False) -> dict[str, Any] | None:
    """The object in a file of JSON or TOML; None if there is no file. Raises NotPlainJson.

    With `has_comments`, JSON may have comments, for a file that is only read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(CONFIG_BYTES_MAX)
        for extra in (_COMMENTS, _TRAILING_COMMAS) if has_comments else ():
            text = extra.sub(lambda match: match[1] or "", text)
        value = tomllib.loads(text) if path.endswith(".toml") else json.loads(text, object_pairs_hook=_unique)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise storage_failed("cannot read", os.fsencode(path), problem) from problem
    except (ValueError, RecursionError) as problem:
        raise NotPlainJson(f"{path} is not plain JSON ({problem}), so it is left as it is") from None
    if not isinstance(value, dict):
        raise NotPlainJson(f"{path} is not an object of JSON, so it is left as it is")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def find_member(value: object, keys: Sequence[str]) -> object:
    """The member at these keys, one below another; None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def set_member(path: str, keys: Sequence[str], member: object) -> None:
    """Set a member of a file's object; None removes it, with the objects, the file and the folders that it leaves
    empty."""
    root = read_object(path) or {}
    objects = [root]
    for key in keys[:-1]:
        objects.append(objects[-1].setdefault(key, {}))
        if not isinstance(objects[-1], dict):
            raise NotPlainJson(f"{key} in {path} is not an object, so the file is left as it is")
    if member is not None:
        objects[-1][keys[-1]] = member
    else:
        objects[-1].pop(keys[-1], None)
        for holder, key, inner in reversed(list(zip(objects, keys, objects[1:], strict=False))):
            if not inner:
                del holder[key]
    if root:
        write_text(path, json.dumps(root, indent=_indent(path), ensure_ascii=False) + "\n")
    elif not os.path.islink(path):
        os.unlink(path)
        remove_empty_folders(os.path.dirname(path))
    else:
        write_text(path, "{}\n")


def _indent(path: str) -> str | int:
    """The indentation of a file that is there."""
    try:
        with open(path, encoding="utf-8") as file:
            found = re.search(r'\n([ \t]+)"', file.read(CONFIG_BYTES_MAX))
    except FileNotFoundError:
        found = None
    return found[1] if found else INDENT


def remove_empty_folders(folder: str) -> None:
    """Remove a folder and those above it as far as they are empty; never the home or the current folder."""
    kept = {os.path.realpath(place) for place in (home(), ".")}
    while os.path.realpath(folder) not in kept:
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


def write_text(path: str, text: str) -> None:
    """Write a file, or replace it in one step; the folders that it needs are made."""
    if os.path.exists(path) and not os.stat(path).st_mode & WRITABLE_BY_ANYBODY:
        raise StorageFailed(f"{path} is read-only; make it writable (chmod u+w), then run this again")
    real = os.path.realpath(path)
    with StorageErrors("cannot write", os.fsencode(real)):
        os.makedirs(os.path.dirname(real), exist_ok=True)
    replace_file(path, text.encode())


def write_tree(folder: str, files: Mapping[str, str]) -> None:
    """Write the files of a folder, by their relative names."""
    for name, text in files.items():
        write_text(os.path.join(folder, name), text)


def absolute(path: str) -> str:
    """An absolute path. A path with `..` is resolved by the system, because it may contain links."""
    try:
        return os.path.realpath(path) if ".." in path.split("/") else os.path.abspath(path)
    except FileNotFoundError:
        raise StorageFailed("the current folder is gone; change to one that is there, then run this again") from None


def executable() -> str:
    """The path by which `context` was called. A link is not resolved, because its target may change."""
    beside = os.path.join(os.path.dirname(sys.executable), COMMAND)
    for candidate in (sys.argv[0], beside):
        if (
            os.path.basename(candidate) in (COMMAND, "contextfold")
            and os.path.isfile(candidate)
            and os.access(candidate, os.X_OK)
        ):
            return writable_in_json(absolute(candidate))
    raise StorageFailed(f"there is no executable {beside}; install contextfold, then run its `context install`")


def writable_in_json(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise StorageFailed(f"{path} is not UTF-8, so no JSON file can name it; choose another path") from None
    if "${" in path:
        raise StorageFailed(f"{path} has ${{ in it, which hosts take for a variable; choose another path")
    return path
