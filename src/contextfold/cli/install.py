"""`context install` connects an agent program to the daemon or to a stdio server; `context uninstall` undoes that.

Both print the difference of the files.
"""

from __future__ import annotations

import argparse
import os
from importlib.resources import files
from shlex import quote

from contextfold.cli.daemon_client import DaemonClient, DaemonSilent, add_daemon_options, daemon_address
from contextfold.cli.host_files import (
    ConfigFile,
    FileChange,
    HostFiles,
    cache_root,
    confirm_and_make,
    executable,
    files_of,
    plan_edit,
)
from contextfold.cli.output import plain, print_note, print_on_terminal
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.network_address import DAEMON_URL, is_variable
from contextfold.errors import StorageFailed
from contextfold.hosts.config_files import Unfit, install_hooks, install_server, uninstall_hooks, uninstall_server
from contextfold.hosts.programs import COMMAND, HOSTS, SERVER, SKILL, Daemon, Stdio, Wiring

HOST_ALIASES = {"claude": "claude-code", "code": "vscode", "vs-code": "vscode", "gemini": "gemini-cli"}


def declare_install(parser: CommandParser) -> None:
    parser.describe(
        """
        Write our server and our hooks into an agent host's own configuration files, once you have seen the
        difference. Everything else in the files stays as it is, to the byte. Without --stdio and
        --cache-root it is the daemon that `context serve` runs: the host calls it, and its hooks tell it
        what the agent does. With one of them the host starts `context serve --stdio` itself, and there
        are no hooks.
        """,
        "context install claude-code",
        "context install vscode --project ~/work/app --dry-run",
        "context install cursor --url https://ctx.example.org --token-variable CONTEXT_TOKEN",
        "context install claude-code --cache-root caches",
    )
    _add_host(parser)
    add_daemon_options(parser)
    parser.add_switch(
        "--stdio", "have the host start a stdio server itself; CONTEXT_CACHE_ROOT names its folder of caches"
    )
    parser.add_argument(
        "--cache-root", metavar="DIR", help="the folder that holds the caches of a server that the host starts"
    )
    _add_file_options(parser)
    parser.add_switch("--force", "replace an entry named contextfold that `context install` did not write")


def declare_uninstall(parser: CommandParser) -> None:
    parser.describe(
        """
        Remove our server and our hooks from an agent host's configuration files, and print the difference.
        Without edits in between, the files are what they were before `context install`, to the byte; with
        edits, they stay.
        """,
        "context uninstall claude-code",
        "context uninstall cursor --user --dry-run",
    )
    _add_host(parser)
    _add_file_options(parser)


def _add_host(parser: CommandParser) -> None:
    help = f"the program to be configured: {', '.join(HOSTS)}"
    parser.add_choice("host", tuple(HOSTS), help, aliases=HOST_ALIASES, metavar="HOST")


def _add_file_options(parser: CommandParser) -> None:
    parser.add_argument("--project", metavar="DIR", help="write the files of this project instead of your own")
    parser.add_switch("--user", "write your own files, for all projects (the default if the program has such files)")
    parser.add_switch("--yes", "do not ask for confirmation")
    parser.add_switch("--dry-run", "print the changes and write nothing")


def run_install(args: argparse.Namespace) -> None:
    wanted = files_of(args)
    wiring = _wiring(wanted, args)
    server = ConfigFile(wanted.server)
    planned = [
        plan_edit(server, lambda text: install_server(wanted.host, text, wiring, force=args.force)),
        *_hooks_changes(wanted, wiring, force=args.force),
        *_skill_changes(wanted, wiring, force=args.force),
    ]
    changes = [change for change in planned if change.is_needed]
    if args.force and planned[0].is_needed:
        try:
            uninstall_server(wanted.host, server.text)
        except Unfit:
            print_note(
                f"the entry {SERVER} in {plain(server.path)} was not written by install; uninstall cannot bring it back"
            )
    if not changes:
        print_on_terminal(f"nothing to do: {server.path} has the entry {SERVER} already")
    elif confirm_and_make(changes, args):
        paths = " and ".join(change.file.path for change in planned if change.text is not None)
        print_on_terminal(f"{SERVER} is in {paths}; {wanted.host.after}")
        if isinstance(wiring, Daemon):
            try:
                DaemonClient(daemon_address(wiring.url), os.environ.get(wiring.token_variable, "")).status()
            except DaemonSilent as problem:
                print_note(f"{problem}; start the daemon with `context serve` or `context service install`")


def run_uninstall(args: argparse.Namespace) -> None:
    wanted = files_of(args)
    planned = [plan_edit(ConfigFile(wanted.server), lambda text: uninstall_server(wanted.host, text))]
    if wanted.hooks:
        planned.append(plan_edit(ConfigFile(wanted.hooks), lambda text: uninstall_hooks(wanted.host, text)))
    if wanted.skill:
        planned.append(_plan_skill_removal(ConfigFile(wanted.skill)))
    changes = [change for change in planned if change.is_needed]
    if not changes:
        print_note(f"nothing to do: {plain(wanted.server)} has no entry {SERVER}")
        return
    for change in changes if confirm_and_make(changes, args) else ():
        what = "was created by install and is removed" if change.text is None else f"no longer has {SERVER}"
        print_on_terminal(f"{change.file.path} {what}")


def _wiring(wanted: HostFiles, args: argparse.Namespace) -> Wiring:
    """The stdio server that the host starts, or the daemon.

    A file that a team shares has the command `context` without its path, and paths of caches relative to the project.
    """
    host = wanted.host
    daemon_options = {"--url": args.url, "--token-variable": args.token_variable}
    for_daemon = [name for name, value in daemon_options.items() if value is not None]
    if not host.takes_http and for_daemon:
        raise UsageError(
            f"{for_daemon[0]} is not for {host.name}: {host.title} only starts servers itself; give --cache-root DIR"
        )
    if args.stdio or args.cache_root is not None or not host.takes_http:
        if for_daemon:
            raise UsageError(
                f"{for_daemon[0]} is for the daemon, --stdio and --cache-root are for a server without one"
            )
        root = cache_root(args)
        return Stdio(COMMAND, _inside_project(wanted, root)) if wanted.project else Stdio(executable(), root)
    variable = args.token_variable or ""
    if args.token_variable is not None and not is_variable(variable):
        raise UsageError(
            f"--token-variable is a variable's name, of letters, digits and _, not {variable!r}; the token goes into it"
        )
    if variable and not host.variable:
        raise UsageError(f"--token-variable is not for {host.name}: its entries cannot refer to a variable")
    url = daemon_address(DAEMON_URL if args.url is None else args.url).url
    is_shared = wanted.project and host.hooks.is_shared
    return Daemon(COMMAND if is_shared else quote(executable()), url, variable)


def _inside_project(wanted: HostFiles, root: str) -> str:
    project = os.path.realpath(wanted.project)
    relative = os.path.relpath(os.path.realpath(root), project)
    if relative.startswith(os.pardir):
        raise StorageFailed(
            f"{root} is outside the project, and {wanted.server} is shared with others; "
            + ("leave out --project" if wanted.host.user_file else "move the caches into the project")
        )
    return wanted.host.folder + relative


def _hooks_changes(wanted: HostFiles, wiring: Wiring, *, force: bool) -> list[FileChange]:
    if not wanted.hooks:
        return []
    if isinstance(wiring, Daemon):
        file = ConfigFile(wanted.hooks)
        return [plan_edit(file, lambda text: install_hooks(wanted.host, text, wiring, force=force))]
    # A server on stdio receives no hooks, so those for a daemon are removed.
    try:
        file = ConfigFile(wanted.hooks)
    except StorageFailed as problem:
        print_note(f"whether {plain(wanted.hooks)} has hooks of ours is not known: {plain(problem.reason)}")
        return []
    return [plan_edit(file, lambda text: uninstall_hooks(wanted.host, text))]


def _skill_text() -> str:
    """The skill that teaches an agent when to fold."""
    return files("contextfold.hosts").joinpath("plugin").joinpath(SKILL).read_text(encoding="utf-8")


def _skill_changes(wanted: HostFiles, wiring: Wiring, *, force: bool) -> list[FileChange]:
    """Install the skill together with the daemon's tools. A skill that was changed is replaced only with --force."""
    if not wanted.skill or not isinstance(wiring, Daemon):
        return []
    file = ConfigFile(wanted.skill)
    if file.text is None or force:
        return [FileChange(file, _skill_text())]
    if file.text != _skill_text():
        print_note(f"{plain(wanted.skill)} is another version of the skill and stays as it is; --force replaces it")
    return []


def _plan_skill_removal(file: ConfigFile) -> FileChange:
    if file.text is not None and file.text != _skill_text():
        print_note(f"{plain(file.path)} is not the skill that install wrote; remove it by hand if it is to go")
        return FileChange(file, file.text)
    return FileChange(file, None)
