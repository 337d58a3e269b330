"""`context install` connects an agent program to the daemon or to a stdio server; `context uninstall` undoes that.

A program that has commands for this is asked by them: Claude Code gets our plugin, with tools, hooks and skill; Codex,
Gemini CLI and VS Code get the server. For the others, the entry is written into their file if that is plain JSON, and
printed otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import join, quote
from typing import NamedTuple, NoReturn

from contextfold import hosts
from contextfold.cli.daemon_client import DaemonClient, DaemonSilent, add_daemon_options, daemon_address, is_proxy_url
from contextfold.cli.host_files import (
    HostFile,
    NotPlainJson,
    absolute,
    claude_settings,
    executable,
    file_of,
    find_member,
    home,
    read_object,
    remove_empty_folders,
    set_member,
    writable_in_json,
    write_tree,
)
from contextfold.cli.output import escape, print_answer, print_note, refuses_on_stdin
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.network_address import DAEMON_URL, MCP_PATH, is_variable
from contextfold.errors import StorageFailed
from contextfold.hosts.programs import (
    CLAUDE_CODE,
    COMMAND,
    HOSTS,
    MCP_FILE,
    PLUGIN,
    SERVER,
    Daemon,
    Host,
    Stdio,
    Wiring,
    add_command,
    entry,
    install_link,
    is_our_entry,
    plugin_texts,
    remove_command,
)
from contextfold.settings import CACHE_ROOT, parse_toolsets, path_in_home

HOST_ALIASES = {"claude": CLAUDE_CODE, "code": "vscode", "vs-code": "vscode", "gemini": "gemini-cli"}
HOST_COMMAND_S = 120
PLUGIN_FILES_MAX = 50
# The variable by which Claude Code finds its provider, in the `env` of its settings.
BASE_URL = ("env", "ANTHROPIC_BASE_URL")
MARKETPLACE_FILE = ".claude-plugin/marketplace.json"


def declare_install(parser: CommandParser) -> None:
    parser.describe(
        """
        Connect an agent host to the daemon that `context serve` runs, by the host's own commands where it
        has them, otherwise by an entry in its file. Claude Code gets our plugin: tools, hooks and skill.
        The others get the tools. With --stdio or --cache-root the host starts `context serve --stdio`
        itself. What is run or written is shown first. Requests to models stay as they are: only with
        --proxy, or with `context run`, do they pass the proxy, and only there can folding save anything.
        """,
        "context install claude-code",
        "context install claude-code --proxy",
        "context install vscode --project ~/work/app --dry-run",
        "context install cursor --url https://ctx.example.org --token-variable CONTEXT_TOKEN",
        "context install claude-desktop --cache-root caches",
    )
    _add_host(parser)
    add_daemon_options(parser)
    parser.add_argument(
        "--tools",
        metavar="LIST",
        help="the tools to offer: resolve, fold, fold-afterwards, or resolve and one of these"
        " (default: context_fold and context_expand for programs that `context run` knows, all for others)",
    )
    parser.add_switch("--proxy", "send Claude Code's requests through the daemon too, by a base URL in its settings")
    parser.add_switch(
        "--stdio", "have the host start a stdio server itself; CONTEXT_CACHE_ROOT names its folder of caches"
    )
    parser.add_argument(
        "--cache-root", metavar="DIR", help="the folder that holds the caches of a server that the host starts"
    )
    _add_file_options(parser)
    parser.add_switch("--force", "replace an entry named contextfold that `context install` did not write")
    parser.set_defaults(run=run_install)


def declare_uninstall(parser: CommandParser) -> None:
    parser.describe(
        """
        Take out what `context install` put into an agent host: its entry, its plugin, its base URL.
        Everything else stays.
        """,
        "context uninstall claude-code",
        "context uninstall cursor --dry-run",
    )
    _add_host(parser)
    _add_file_options(parser)
    parser.set_defaults(run=run_uninstall)


def _add_host(parser: CommandParser) -> None:
    help = f"the program to be configured: {', '.join(HOSTS)}"
    parser.add_choice("host", tuple(HOSTS), help, aliases=HOST_ALIASES, metavar="HOST")


def _add_file_options(parser: CommandParser) -> None:
    parser.add_argument("--project", metavar="DIR", help="for this project instead of all your projects")
    parser.add_switch("--user", "for all your projects (the default)")
    parser.add_switch("--yes", "do not ask for confirmation")
    parser.add_switch("--dry-run", "print what would be run and written, and do nothing")


class Step(NamedTuple):
    """What is done, in words, and the function that does it."""

    text: str
    make: Callable[[], object]


def run_install(args: argparse.Namespace) -> None:
    file = file_of(args)
    wiring = _wiring(file, args)
    if args.proxy and (file.host.name != CLAUDE_CODE or isinstance(wiring, Stdio) or wiring.token_variable):
        raise UsageError(
            "--proxy is for claude-code with a daemon that asks for no token; docs/proxy.md has the other ways"
        )
    if file.host.name == CLAUDE_CODE and isinstance(wiring, Daemon):
        steps = [*_plugin_steps(file, wiring), *(_base_url_steps(file, wiring) if args.proxy else ())]
    else:
        is_by_hand = not file.path and not _has_command(file)
        if file.host.link and not file.project and (args.dry_run or is_by_hand):
            print_note(f"a link that asks {file.host.title} to add it: {install_link(file.host, wiring)}")
        steps = _server_steps(file, wiring, force=args.force)
    if not steps:
        print_answer(f"nothing to do: {file.host.title} has {SERVER} already\n")
    elif _confirm_and_make(steps, args):
        print_answer(f"{file.host.title} has {SERVER} now; {file.host.after}\n")
        if isinstance(wiring, Daemon):
            _explain(file.host, wiring, has_proxy=args.proxy)


def run_uninstall(args: argparse.Namespace) -> None:
    file = file_of(args)
    steps = _removal_steps(file)
    if file.host.name == CLAUDE_CODE:
        steps = [*_base_url_removal(file), *_plugin_removal(file), *steps]
    if not steps:
        print_note(f"nothing to do: {file.host.title} has nothing of {SERVER}")
    elif _confirm_and_make(steps, args):
        print_answer(f"{file.host.title} has nothing of {SERVER} any more\n")


def _confirm_and_make(steps: Sequence[Step], args: argparse.Namespace) -> bool:
    """Show the steps, ask for consent, and make them; False if nothing was done."""
    print_answer("".join(f"{escape(step.text)}\n" for step in steps))
    if args.dry_run:
        print_note("nothing was done; leave out --dry-run to do it")
        return False
    if not args.yes and refuses_on_stdin("Do this?"):
        print_note("nothing was done")
        return False
    for step in steps:
        step.make()
    return True


def _wiring(file: HostFile, args: argparse.Namespace) -> Wiring:
    """The stdio server that the host starts, or the daemon.

    A file that a team shares has the command `context` without its path, and paths of caches relative to the project.
    """
    host = file.host
    daemon_options = {"--url": args.url, "--token-variable": args.token_variable, "--tools": args.tools}
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
        is_shared = file.project and host.name != CLAUDE_CODE
        root = _cache_root(args)
        return Stdio(COMMAND, _inside_project(file, root)) if is_shared else Stdio(executable(), root)
    variable = args.token_variable or ""
    if args.token_variable is not None and not is_variable(variable):
        raise UsageError(
            f"--token-variable is a variable's name, of letters, digits and _, not {variable!r}; the token goes into it"
        )
    if variable and not host.variable:
        raise UsageError(f"--token-variable is not for {host.name}: its entries cannot refer to a variable")
    tools = host.tools if args.tools is None else ",".join(parse_toolsets("--tools", args.tools))
    return Daemon(daemon_address(DAEMON_URL if args.url is None else args.url).url, variable, tools)


def _cache_root(args: argparse.Namespace) -> str:
    """The folder of caches that the server offers."""
    given = args.cache_root or os.environ.get(CACHE_ROOT, "")
    if not given:
        raise UsageError(f"missing --cache-root DIR, the folder that holds your caches (or set {CACHE_ROOT})")
    if not os.path.isdir(given):
        raise StorageFailed(f"there is no folder {given}; make it, or give --cache-root the one that holds your caches")
    return writable_in_json(absolute(given))


def _inside_project(file: HostFile, root: str) -> str:
    relative = os.path.relpath(os.path.realpath(root), os.path.realpath(file.project))
    if relative.startswith(os.pardir):
        raise StorageFailed(
            f"{root} is outside the project, and {file.path} is shared with others; leave out --project, or move the "
            "caches into the project"
        )
    return file.host.folder + relative


# ---- the server's entry


def _server_steps(file: HostFile, wiring: Wiring, *, force: bool) -> list[Step]:
    """The steps that give a host our server, by its own command or in its file."""
    host, wanted = file.host, entry(file.host, wiring)
    by_command = _has_command(file)
    if not by_command and not file.path:
        _print_snippet(host, wanted, f"{host.program} is not on your PATH, and {host.title} knows where its file is")
    try:
        current = _current_entry(file)
    except NotPlainJson as problem:
        if not by_command:
            _print_snippet(host, wanted, problem.reason)
        current = None
    if current == wanted:
        return []
    if current is not None and not is_our_entry(current) and not force:
        raise StorageFailed(
            f"{file.path} has an entry {SERVER} that install did not write; rename it, or add --force to lose it"
        )
    if by_command:
        first = [_command_step(file, remove_command(host, _scope(file)))] if current is not None else []
        return [*first, _command_step(file, add_command(host, wiring, _scope(file)))]
    text = f"write {file.path}: {host.key}.{SERVER} = {json.dumps(wanted)}"
    return [Step(text, partial(set_member, file.path, (host.key, SERVER), wanted))]


def _removal_steps(file: HostFile) -> list[Step]:
    host = file.host
    try:
        current = _current_entry(file) if file.path else None
    except NotPlainJson:
        if not _has_command(file):
            raise
        # Only the host itself can read its file; its command says so if there is nothing of ours.
        return [_command_step(file, remove_command(host, _scope(file)))]
    if not file.path:
        raise StorageFailed(f"only {host.title} itself can remove the server: {host.after}")
    if current is None:
        return []
    if not is_our_entry(current):
        raise StorageFailed(f"the entry {SERVER} in {file.path} is not as install wrote it; remove it by hand")
    if _has_command(file):
        return [_command_step(file, remove_command(host, _scope(file)))]
    text = f"write {file.path}: without {host.key}.{SERVER}"
    return [Step(text, partial(set_member, file.path, (host.key, SERVER), None))]


def _current_entry(file: HostFile) -> object:
    keys: tuple[str, ...] = (file.host.key, SERVER)
    path = file.path
    if file.host.name == CLAUDE_CODE:
        # Claude Code keeps a project's servers that are not shared in the user's file.
        path = os.path.join(os.environ.get("CLAUDE_CONFIG_DIR") or home(), ".claude.json")
        keys = ("projects", os.path.realpath(file.project), *keys) if file.project else keys
    current = find_member(read_object(path), keys)
    # Hosts add members that say nothing, such as an empty environment.
    return {key: value for key, value in current.items() if value != {}} if isinstance(current, dict) else current


def _has_command(file: HostFile) -> bool:
    """Whether the host changes this file by its own command."""
    program = file.host.program
    return bool(program) if program != "code" else not file.project and bool(_which(program))


def _scope(file: HostFile) -> str:
    """Where a command writes: Claude Code's `local` is for this user and project, and shared with nobody."""
    return ("local" if file.host.name == CLAUDE_CODE else "project") if file.project else "user"


def _print_snippet(host: Host, wanted: object, reason: str) -> NoReturn:
    """Print what the user is to add, because the file is not ours to write."""
    print_answer(json.dumps({host.key: {SERVER: wanted}}, indent=2) + "\n")
    raise StorageFailed(f"{reason}; add the lines above to it yourself")


def _command_step(file: HostFile, argv: list[str]) -> Step:
    folder = file.project or None
    return Step(f"run {join(argv)}" + (f" in {folder}" if folder else ""), partial(_run_host, argv, folder))


def _find_program(name: str) -> str:
    program = _which(name)
    if not program:
        raise StorageFailed(f"{name} is not on your PATH; install it, then run this again")
    return program


def _run_host(argv: Sequence[str], folder: str | None = None) -> str:
    program = _find_program(argv[0])
    try:
        ran = subprocess.run(
            [program, *argv[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=HOST_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise StorageFailed(f"cannot run {argv[0]}: {problem}") from problem
    if ran.returncode:
        reason = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1:] or [f"exit status {ran.returncode}"]
        raise StorageFailed(f"`{join(argv)}` failed: {reason[0]}")
    return ran.stdout


def _which(program: str) -> str:
    return shutil.which(program) or ""


# ---- Claude Code's plugin and base URL


def plugin_files() -> dict[str, str]:
    """The texts of the files of the plugin for Claude Code, by path."""
    plugin = Path(hosts.__file__).parent / "plugin"
    paths = [path for path in plugin.rglob("*") if path.is_file()]
    return {path.relative_to(plugin).as_posix(): path.read_text("utf-8") for path in paths[:PLUGIN_FILES_MAX]}


def _marketplace() -> str:
    """The folder of ours from which Claude Code reads the plugin; it names this user's daemon."""
    return path_in_home(os.environ, "XDG_DATA_HOME", ".local/share", "claude-code")


def _plugin_steps(file: HostFile, daemon: Daemon) -> list[Step]:
    folder = _marketplace()
    listed = {"name": SERVER, "description": "Folds finished work to a summary.", "source": "./plugin"}
    texts = {MARKETPLACE_FILE: json.dumps({"name": SERVER, "owner": {"name": SERVER}, "plugins": [listed]}) + "\n"}
    plugin = plugin_texts(plugin_files(), daemon, quote(executable()))
    texts |= {f"plugin/{name}": text for name, text in plugin.items()}
    removal = [["claude", "plugin", "uninstall", PLUGIN, "--scope", _scope(file)]] if _is_enabled(file) else []
    commands = [
        *removal,
        ["claude", "plugin", "marketplace", "add", folder],
        ["claude", "plugin", "install", PLUGIN, "--scope", _scope(file)],
    ]
    return [
        Step(f"write {folder}: our plugin, for {daemon.url}", partial(_write_marketplace, folder, texts)),
        *(_command_step(file, command) for command in commands),
    ]


def _write_marketplace(folder: str, texts: Mapping[str, str]) -> None:
    # Nobody would take the files out again.
    _find_program("claude")
    write_tree(folder, texts)


def _plugin_removal(file: HostFile) -> list[Step]:
    if not _is_enabled(file):
        return []
    steps = [_command_step(file, ["claude", "plugin", "uninstall", PLUGIN, "--scope", _scope(file)])]
    folder = _marketplace()
    return [*steps, Step(f"remove {folder}, unless another project uses it", partial(_remove_marketplace, folder))]


def _remove_marketplace(folder: str) -> None:
    if PLUGIN in _run_host(["claude", "plugin", "list", "--json"]):
        return
    _run_host(["claude", "plugin", "marketplace", "remove", SERVER])
    shutil.rmtree(folder, ignore_errors=True)
    remove_empty_folders(os.path.dirname(folder))


def _is_enabled(file: HostFile) -> bool:
    return find_member(read_object(claude_settings(file.project)), ("enabledPlugins", PLUGIN)) is True


def _base_url_steps(file: HostFile, daemon: Daemon) -> list[Step]:
    path, url = claude_settings(file.project), f"{daemon.url}/proxy/anthropic"
    current = find_member(read_object(path), BASE_URL)
    for found, place in ((current, path), (os.environ.get(BASE_URL[1]), "the environment")):
        if found and found != url:
            raise StorageFailed(
                f"{BASE_URL[1]} is already set in {place}, so it is left as it is; start the daemon with "
                "--anthropic-upstream set to that address, take it out, and run this again"
            )
    return (
        []
        if current
        else [Step(f"write {path}: {'.'.join(BASE_URL)} = {url}", partial(set_member, path, BASE_URL, url))]
    )


def _base_url_removal(file: HostFile) -> list[Step]:
    path = claude_settings(file.project)
    current = find_member(read_object(path), BASE_URL)
    installed = find_member(
        read_object(os.path.join(_marketplace(), "plugin", MCP_FILE)), ("mcpServers", SERVER, "url")
    )
    if not isinstance(current, str) or not is_proxy_url(current, str(installed).partition(MCP_PATH)[0]):
        return []
    return [Step(f"write {path}: without {'.'.join(BASE_URL)}", partial(set_member, path, BASE_URL, None))]


def _explain(host: Host, daemon: Daemon, *, has_proxy: bool) -> None:
    """Say what the installation does not do, and whether the daemon answers."""
    start = "`context service install` starts it now and after each log-in"
    if has_proxy:
        print_note(
            f"while the daemon is down, {host.title} reaches no model: {start}; "
            f"`context uninstall {host.name}` undoes it"
        )
    elif host.runs:
        by_proxy = f", or `context install {host.name} --proxy`" if host.name == CLAUDE_CODE else ""
        print_note(
            f"nothing is saved yet: {host.title}'s requests do not pass the proxy; start it with "
            f"`context run {host.runs}`{by_proxy}"
        )
    else:
        print_note(f"nothing is saved in {host.title}'s requests: they do not pass the proxy")
    try:
        DaemonClient(daemon_address(daemon.url), os.environ.get(daemon.token_variable, "")).status()
    except DaemonSilent as problem:
        print_note(f"{problem}; start the daemon with `context serve`, or {start}")
