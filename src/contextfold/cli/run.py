"""`context run PROGRAM`: starts an agent program that uses the daemon, for this one process.

If no daemon answers, one is started on a free port with the user's store, and stopped when the program ends, or when
this process is killed. Arguments, terminal, signals and the exit status are those of the program. The last lines on
stderr say what folding saved or cost in this run, and how to go on through the proxy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from select import select
from shlex import join, quote
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from contextfold.cli.daemon_client import (
    OTHER_USERS_VARIABLE,
    PAGE_VARIABLE,
    RUN_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    DaemonClient,
    DaemonSilent,
    StrangersDaemon,
    add_daemon_options,
    client_from,
    is_local_name,
    is_proxy_url,
)
from contextfold.cli.host_files import (
    absolute,
    claude_variables,
    find_member,
    read_if_valid,
    read_object,
    user_file,
    write_tree,
)
from contextfold.cli.install import plugin_files
from contextfold.cli.output import plain, print_error, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.answer_format import TOKENS_WORTH, format_dollars, format_share
from contextfold.common.daemon_proof import SECRET_BYTES, find_proof
from contextfold.common.network_address import Address, parse_daemon_url
from contextfold.common.socket_owner import can_tell_owners
from contextfold.errors import CacheMissing, StorageFailed
from contextfold.hosts.programs import (
    DOCUMENTS_SERVER,
    HOSTS,
    MCP_FILE,
    SERVER,
    Daemon,
    Documents,
    entry,
    plugin_texts,
)
from contextfold.resolve.files import nearest_caches
from contextfold.settings import FOLD_AFTERWARDS, parse_toolsets, path_in_home, proof_folder

DAEMON_START_S = 20.0
DAEMON_STOP_S = 15.0
# The daemon waits up to 5 s for reports that are not written yet.
SUMS_WAIT_S = 10.0
PLUGIN_FOLDER, MCP_CONFIG, SETTINGS_FILE = "plugin", "mcp.json", "settings.json"
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
GEMINI_URL_VARIABLE = "GOOGLE_GEMINI_BASE_URL"
# The variables that name a provider, and those of the daemon that take over what a user has set.
UPSTREAMS = {
    "ANTHROPIC_BASE_URL": "CONTEXT_ANTHROPIC_UPSTREAM",
    "OPENAI_BASE_URL": "CONTEXT_OPENAI_UPSTREAM",
    GEMINI_URL_VARIABLE: "CONTEXT_GEMINI_UPSTREAM",
}
GEMINI_SETTINGS_VARIABLE = "GEMINI_CLI_SYSTEM_SETTINGS_PATH"
# A line of a file of variables: a name, and a value in quotes of either kind or without.
_VARIABLE = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=[ \t]*(?:"([^"]*)"|'([^']*)'|([^#\s]*))""", re.MULTILINE)
GEMINI_SETTINGS = {
    "darwin": "/Library/Application Support/GeminiCli/settings.json",
    "linux": "/etc/gemini-cli/settings.json",
}


class Program(NamedTuple):
    """How a program goes on with a conversation, with and without its id, and why its requests may not have come."""

    resume: tuple[str, ...]
    latest: tuple[str, ...]
    elsewhere: str


PROGRAMS = {
    "claude": Program(
        ("--resume",),
        ("--continue",),
        "it may use Bedrock, Vertex or the base URL of an administrator, or have made none",
    ),
    "codex": Program(
        ("resume",),
        ("resume", "--last"),
        "it may be logged in with an account, or use another provider of its config.toml, or have made none",
    ),
    "opencode": Program(
        ("--session",),
        ("--continue",),
        "it may use another provider than Anthropic, OpenAI and Gemini or a base URL of its own, or have made none",
    ),
    "gemini": Program(
        ("--resume",),
        ("--resume", "latest"),
        "it may be logged in with an account instead of an API key, or have made none",
    ),
}
# The providers of OpenCode that have a proxy, each with the path below it that OpenCode's client expects.
OPENCODE_PROVIDERS = {"anthropic": "anthropic/v1", "openai": "openai/v1", "google": "gemini/v1beta"}
# These send the daemon's token with every request. Codex can do so only as another provider, with a history of its own.
SENDS_TOKEN = ("claude", "gemini", "opencode")


def declare_run(parser: CommandParser) -> None:
    parser.describe(
        """
        Start a program with the daemon behind it. Claude Code gets the proxy, the tools, the hooks and
        the skill; codex, opencode and gemini get the proxy and the tools; any other program gets the
        proxy by ANTHROPIC_BASE_URL, OPENAI_BASE_URL and GOOGLE_GEMINI_BASE_URL. No file of the project
        or of yours changes. If no daemon answers, one runs for as long as the program does. Everything
        behind the program's name is passed on to it, and its exit status is that of this command.
        """,
        "context run claude",
        "context run claude -p 'why does the build fail?'",
        "context run codex",
        "context run --tools fold,resolve claude",
        "context run --docs docs claude",
        "context run python my_agent.py",
    )
    parser.add_argument("program", metavar="PROGRAM", help="the program to start")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the program's own arguments")
    parser.add_argument(
        "--tools",
        metavar="LIST",
        # Few definitions, because every request pays for them.
        default=FOLD_AFTERWARDS,
        help="the tools to offer: resolve, fold or both (default: context_fold and context_expand)",
    )
    parser.add_argument(
        "--docs",
        metavar="DIR",
        help="build a cache of this folder for the agent to ask (default: the nearest cache, if there is one)",
    )
    add_daemon_options(parser)
    parser.set_defaults(run=run_run)


def run_run(args: argparse.Namespace) -> int:
    program = shutil.which(args.program)
    if program is None:
        print_error(f"{args.program} is not on your PATH; install it, or give its path")
        return NOT_FOUND
    args.tools = ",".join(parse_toolsets("--tools", args.tools))
    documents = _documents(args)
    with _private_folder() as folder:
        environment = _users_environment(_name(program))
        upstreams = _own_upstreams(environment, client_from(args).address.url)
        daemon = _running_daemon(args)
        # If the user has set a base URL, a new daemon is needed that forwards to it.
        if daemon is not None and not upstreams:
            return _run_with(daemon, program, args, folder, documents, environment=environment, page=daemon)
        own = _OwnDaemon(upstreams, folder, has_token=_name(program) in SENDS_TOKEN)
        try:
            client = own.client()
            return _run_with(client, program, args, folder, documents, environment=environment, page=daemon or client)
        finally:
            own.stop()


def _documents(args: argparse.Namespace) -> Documents | None:
    """The server for the documents of the project, if there is a cache of them, or one is wanted."""
    program = (sys.executable, "-m", "contextfold")
    if args.docs is not None:
        # Few runs build a cache.
        from contextfold.cli.build import build_default_cache

        build_default_cache(args.docs)
        return Documents(program, absolute(args.docs))
    try:
        caches = nearest_caches(os.getcwd())
    except CacheMissing:
        return None
    return Documents(program, caches[0]) if len(caches) == 1 else None


def _run_with(
    daemon: DaemonClient,
    program: str,
    args: argparse.Namespace,
    folder: str,
    documents: Documents | None,
    *,
    environment: Mapping[str, str],
    page: DaemonClient,
) -> int:
    """Run the program with a daemon; print what folding saved meanwhile.

    `environment` is the program's without us; `page` is the daemon whose page is shown.
    """
    name, run = _name(program), f"run_{secrets.token_hex(8)}"
    try:
        daemon.put(f"/v1/runs/{run}", {"project_path": absolute("."), "program": plain(name)[:64]})
    except DaemonSilent as problem:
        raise UsageError(f"{problem}; restart the daemon, so that it is of this version") from None
    connection = Daemon(f"{daemon.address.url}/run/{run}", TOKEN_VARIABLE if daemon.token else "", args.tools)
    launched = launch(name, connection, daemon.token, folder, environment, documents=documents)
    write_tree(folder, launched.files)
    asks = f"; it can ask the documents in {plain(documents.folder)}" if documents and name in PROGRAMS else ""
    print_note(f"{name} runs with {launched.wired}{asks}; the page: {page.address.url}/")
    known = {URL_VARIABLE: daemon.address.url} | ({TOKEN_VARIABLE: daemon.token} if daemon.token else {})
    if page is not daemon:
        known[PAGE_VARIABLE] = page.address.url
    code = _run_program(
        [program, *launched.arguments, *args.arguments], {**os.environ, **known, **launched.environment}
    )
    try:
        sums = daemon.get(f"/v1/runs/{run}", timeout_s=SUMS_WAIT_S)
    except DaemonSilent as problem:
        print_note(f"what folding saved is not known: {problem}")
        return code
    for line in summary_lines(sums, name, _given_options(args)):
        print_note(line)
    return code


def _given_options(args: argparse.Namespace) -> list[str]:
    """The options of this command that the next run needs, too."""
    given = {"--url": args.url, "--token-variable": args.token_variable}
    given["--docs"] = args.docs
    given["--tools"] = args.tools if args.tools != FOLD_AFTERWARDS else None
    return [word for option, value in given.items() if value is not None for word in (option, value)]


class Launch(NamedTuple):
    """Arguments before the user's own, additional variables, and temporary files.

    The names of files are relative to a temporary folder; the arguments and variables already contain its path.
    `wired` describes what the program uses.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    wired: str


def launch(
    program: str,
    daemon: Daemon,
    token: str,
    folder: str,
    environment: Mapping[str, str],
    *,
    documents: Documents | None = None,
) -> Launch:
    """How to start a program of this name. `daemon` names the run in its address; `environment` is the user's.

    With `documents`, it gets a second server that asks these.
    """
    anthropic = {"ANTHROPIC_BASE_URL": f"{daemon.url}/proxy/anthropic"}
    gemini = {GEMINI_URL_VARIABLE: f"{daemon.url}/proxy/gemini"}
    openai_url = f"{daemon.url}/proxy/openai/v1"
    every_base_url = anthropic | {"OPENAI_BASE_URL": openai_url} | gemini
    match program:
        case "claude":
            servers = _documents_server("claude-code", documents)
            return _launch_claude(daemon, token, folder, environment, anthropic, servers=servers)
        case "codex":
            # Codex accepts overrides of its configuration with -c, each a TOML value. A whole table replaces the
            # user's own of that name.
            server: dict[str, object] = {"url": daemon.mcp}
            if token:
                server["bearer_token_env_var"] = daemon.token_variable
            overrides: dict[str, object] = {"openai_base_url": openai_url}
            if own := _codex_provider():
                overrides = {}
            elif token:
                headers = {"X-Context-Token": daemon.token_variable}
                provider = {"name": "OpenAI", "base_url": openai_url, "wire_api": "responses"}
                overrides = {
                    "model_provider": SERVER,
                    f"model_providers.{SERVER}": {
                        **provider,
                        "requires_openai_auth": True,
                        "env_http_headers": headers,
                    },
                }
            overrides[f"mcp_servers.{SERVER}"] = server
            for name, described in _documents_server("codex", documents).items():
                overrides[f"mcp_servers.{name}"] = described
            words = [word for key, value in overrides.items() for word in ("-c", f"{key}={_toml(value)}")]
            if own:
                why = f"its config.toml names another provider, {plain(own)}"
                return Launch(tuple(words), {}, {}, f"tools, without the proxy: {why}")
            return Launch(tuple(words), every_base_url, {}, "proxy and tools")
        case "opencode":
            servers = _documents_server("opencode", documents)
            gateways = _opencode_gateways(environment)
            config = _opencode_config(daemon, environment.get("OPENCODE_CONFIG_CONTENT", ""), gateways, servers)
            kept = f"; {' and '.join(gateways)} without the proxy, by your own base URL" if gateways else ""
            return Launch((), {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, {}, f"proxy and tools{kept}")
        case "gemini":
            servers = _documents_server("gemini-cli", documents)
            return _launch_gemini(daemon, token, folder, environment, gemini, servers=servers)
    return Launch((), every_base_url, {}, "the proxy (by base URL); for tools see `context install`")


def _documents_server(host: str, documents: Documents | None) -> dict[str, object]:
    """The second server as the host describes it, by its name; empty if there are no documents."""
    return {DOCUMENTS_SERVER: entry(HOSTS[host], documents)} if documents else {}


def _launch_gemini(
    daemon: Daemon,
    token: str,
    folder: str,
    environment: Mapping[str, str],
    base_url: Mapping[str, str],
    *,
    servers: Mapping[str, object],
) -> Launch:
    gemini = dict(base_url)
    if token:
        own = environment.get("GEMINI_CLI_CUSTOM_HEADERS", "")
        gemini["GEMINI_CLI_CUSTOM_HEADERS"] = f"{own}, X-Context-Token: {token}".lstrip(", ")
    try:
        settings = _gemini_settings(daemon, environment, servers)
    except StorageFailed as problem:
        return Launch((), gemini, {}, f"the proxy, without tools: {problem.reason}")
    if others := _folder_open_to_others(folder):
        hint = f"it reads no settings there, because others may write to {others}; set XDG_RUNTIME_DIR to another place"
        if _lacks_login(environment):
            return Launch((), {}, {}, f"neither proxy nor tools: {hint}")
        return Launch((), gemini, {}, f"the proxy, without tools: {hint}")
    gemini[GEMINI_SETTINGS_VARIABLE] = f"{folder}/{SETTINGS_FILE}"
    return Launch((), gemini, {SETTINGS_FILE: json.dumps(settings)}, "proxy and tools")


def _launch_claude(
    daemon: Daemon,
    token: str,
    folder: str,
    environment: Mapping[str, str],
    base_url: Mapping[str, str],
    *,
    servers: Mapping[str, object],
) -> Launch:
    # The server has the name under which people install it, and the plugin has the name of the installed one: Claude
    # Code then takes these instead of those, so no tool is offered and no hook is called twice.
    texts = plugin_texts(plugin_files(), daemon, f"{quote(sys.executable)} -m contextfold", servers)
    files = {MCP_CONFIG: texts.pop(MCP_FILE)}
    files |= {f"{PLUGIN_FOLDER}/{name}": text for name, text in texts.items()}
    variables = dict(base_url)
    if token:
        own = environment.get("ANTHROPIC_CUSTOM_HEADERS", "")
        variables["ANTHROPIC_CUSTOM_HEADERS"] = f"{own}\nX-Context-Token: {token}".lstrip("\n")
    # The user's settings may name the base URL of the installed daemon, and come before the environment.
    files[SETTINGS_FILE] = json.dumps({"env": variables})
    # The form with = takes one value; otherwise the option would take the user's words after it, too.
    arguments = (f"--mcp-config={folder}/{MCP_CONFIG}", f"--settings={folder}/{SETTINGS_FILE}")
    return Launch(
        (*arguments, "--plugin-dir", f"{folder}/{PLUGIN_FOLDER}"), variables, files, "proxy, tools, hooks and skill"
    )


def _codex_provider() -> str:
    """The provider that the user has chosen for Codex; empty for the usual one."""
    config = read_if_valid(user_file(HOSTS["codex"]))
    profile = find_member(config, ("profiles", str(find_member(config, ("profile",)))))
    provider = find_member(profile, ("model_provider",)) or find_member(config, ("model_provider",))
    return provider if isinstance(provider, str) and provider != "openai" else ""


def _opencode_files(environment: Mapping[str, str]) -> Iterator[str]:
    """The files in which OpenCode looks for its configuration, whether they are there or not."""
    user, here = os.path.dirname(user_file(HOSTS["opencode"])), os.getcwd()
    yield environment.get("OPENCODE_CONFIG", "")
    for folder in (user, environment.get("OPENCODE_CONFIG_DIR") or user):
        yield from (os.path.join(folder, name) for name in ("config.json", "opencode.json", "opencode.jsonc"))
    for project in (here, *map(str, Path(here).parents)):
        for name in ("opencode.json", "opencode.jsonc"):
            yield from (os.path.join(project, name), os.path.join(project, ".opencode", name))


def _opencode_gateways(environment: Mapping[str, str]) -> list[str]:
    """The providers for which the user has a base URL. It may have another path than the provider, so it stays."""
    files = [read_if_valid(path, has_comments=True) for path in _opencode_files(environment)]
    urls = {name: ("provider", name, "options", "baseURL") for name in OPENCODE_PROVIDERS}
    return [name for name, keys in urls.items() if any(find_member(file, keys) for file in files)]


def _opencode_config(
    daemon: Daemon, own: str, gateways: Sequence[str], servers: Mapping[str, object]
) -> dict[str, object]:
    """OpenCode merges a configuration from a variable over its files. What the user has in the variable stays."""
    try:
        given = json.loads(own or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise UsageError("OPENCODE_CONFIG_CONTENT is not an object of plain JSON, so nothing can be added to it")
    token = {"X-Context-Token": f"{{env:{daemon.token_variable}}}"} if daemon.token_variable else {}
    providers: dict[str, object] = {
        name: {"options": {"baseURL": f"{daemon.url}/proxy/{path}"} | ({"headers": token} if token else {})}
        for name, path in OPENCODE_PROVIDERS.items()
        if name not in gateways
    }
    merged = _merge({"provider": providers}, given)
    return _merge(merged, {"mcp": {SERVER: entry(HOSTS["opencode"], daemon), **servers}})


def _gemini_settings(
    daemon: Daemon, environment: Mapping[str, str], servers: Mapping[str, object]
) -> dict[str, object]:
    """Gemini CLI reads this file over all others. It may be an administrator's, so what is in it stays."""
    path = _administrators_file(environment)
    given = (read_object(path, has_comments=True) if path else None) or {}
    added: dict[str, object] = {"mcpServers": {SERVER: entry(HOSTS["gemini-cli"], daemon), **servers}}
    if _lacks_login(environment):
        added |= {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    return _merge(given, added)


def _administrators_file(environment: Mapping[str, str]) -> str:
    return environment.get(GEMINI_SETTINGS_VARIABLE) or GEMINI_SETTINGS.get(sys.platform, "")


def _lacks_login(environment: Mapping[str, str]) -> bool:
    """Whether there is a key that Gemini CLI would not take: with a base URL, its settings must say that it is used."""
    gemini = HOSTS["gemini-cli"]
    files = (_administrators_file(environment), user_file(gemini), gemini.project_file)
    settings = [read_if_valid(path, has_comments=True) for path in files if path]
    selects_login = any(find_member(each, ("security", "auth", "selectedType")) for each in settings)
    return bool(environment.get("GEMINI_API_KEY")) and not selects_login


def _gemini_variables() -> dict[str, str]:
    """The variables that Gemini CLI reads from the first file it finds, from this folder upwards and in the home.

    A file of a project may have come with a cloned repository, so it must not lead to another provider.
    """
    users = Path(user_file(HOSTS["gemini-cli"])).parent.parent
    folders = [Path.cwd(), *Path.cwd().parents, users]
    paths = [str(folder / name) for folder in folders for name in (".gemini/.env", ".env")]
    path = next(filter(os.path.isfile, paths), "")
    try:
        text = Path(path).read_text("utf-8") if path else ""
    except (OSError, ValueError):
        return {}
    variables = {match[1]: match[2] or match[3] or match[4] or "" for match in _VARIABLE.finditer(text)}
    # The last two are the user's own.
    if GEMINI_URL_VARIABLE in variables.keys() - os.environ.keys() and path not in paths[-2:]:
        raise UsageError(f"{path} sets {GEMINI_URL_VARIABLE}; if you trust it, set that in the environment instead")
    return variables


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one, and the objects in them too; otherwise what is above counts."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _toml(value: object) -> str:
    """A value of TOML in one line. Its strings are those of JSON, but its tables are not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _private_folder() -> TemporaryDirectory[str]:
    """A folder that nobody else can write to, nor to those above it: Gemini CLI reads no settings elsewhere."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    place = os.path.join(runtime, "contextfold")
    try:
        if not os.path.isabs(runtime) or os.stat(runtime).st_mode & WRITABLE_BY_OTHERS:
            place = path_in_home(os.environ, "XDG_STATE_HOME", ".local/state", "runs")
        os.makedirs(place, mode=0o700, exist_ok=True)
        return TemporaryDirectory(prefix="run-", dir=place, ignore_cleanup_errors=True)
    except OSError as problem:
        raise StorageFailed(f"no private folder can be made in {place}: {problem.strerror}") from None


def _folder_open_to_others(folder: str) -> str:
    """The folder itself or one above it to which other users may write; empty if there is none."""
    while folder != os.path.dirname(folder):
        with suppress(OSError):
            if os.stat(folder).st_mode & WRITABLE_BY_OTHERS:
                return folder
        folder = os.path.dirname(folder)
    return ""


def _name(program: str) -> str:
    return os.path.basename(program).removesuffix(".exe")


def _run_program(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run the program in this terminal. It receives the signals of keys directly; other signals are forwarded."""
    child: Popen[bytes] | None = None
    early: list[int] = []
    from_terminal = (signal.SIGINT, signal.SIGQUIT)
    passed_on = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    # In a background process group, such as a job of a script, SIGINT comes from `kill` and must be forwarded.
    from_keys = from_terminal if _is_in_foreground() else ()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in from_keys:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before = {number: signal.getsignal(number) for number in from_terminal + passed_on}
    try:
        # A signal during the start waits for the program. One that is ignored must be ignored in the program too.
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        try:
            child = Popen(argv, env=environment)
        except OSError as problem:
            print_error(f"cannot start {plain(argv[0])}: {problem.strerror}")
            return NOT_EXECUTABLE
        for number in before:
            signal.signal(number, pass_on)
        for waiting in early:
            child.send_signal(waiting)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else BY_SIGNAL - code


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _running_daemon(args: argparse.Namespace) -> DaemonClient | None:
    """The daemon that answers, if any. A daemon that the user has named must answer."""
    client = client_from(args)
    try:
        _require_proof(client.address)
        client.status()
    except StrangersDaemon as problem:
        if args.url is not None:
            raise UsageError(str(problem)) from None
        return None
    except DaemonSilent as problem:
        if args.url is not None or "token" in str(problem):
            raise UsageError(str(problem)) from None
        return None
    return client


def _require_proof(address: Address) -> None:
    """Raise StrangersDaemon if what listens on loopback does not prove that it is this user's.

    Where the system tells whose sockets there are, every request asks it instead.
    """
    if not is_local_name(address.name) or os.environ.get(OTHER_USERS_VARIABLE) == "on" or can_tell_owners():
        return
    challenge = secrets.token_hex(SECRET_BYTES)
    # Without the token, which is not for another user either.
    answer = DaemonClient(address).get_text(f"/healthz?challenge={challenge}")
    proof = find_proof(proof_folder(os.environ), address.port, challenge)
    if not proof or not secrets.compare_digest(answer.partition("\n")[2].strip().encode(), proof.encode()):
        raise StrangersDaemon(address, "another user, or to an older version,")


def _users_environment(program: str) -> dict[str, str]:
    """The variables that a program would use without us, with those of its own settings."""
    own: Mapping[str, str] = {}
    if program == "claude":
        own = claude_variables()
    elif program == "codex":
        url = find_member(read_if_valid(user_file(HOSTS["codex"])), ("openai_base_url",))
        own = {"OPENAI_BASE_URL": url} if isinstance(url, str) else {}
    elif program == "gemini":
        # Here the environment comes first.
        return {**_gemini_variables(), **os.environ}
    return {**os.environ, **own}


def _own_upstreams(environment: Mapping[str, str], daemon_url: str) -> dict[str, str]:
    """The base URLs that the user has set, as variables of the daemon: they may be secret, and argv is not."""
    given = {}
    for variable, setting in UPSTREAMS.items():
        url = environment.get(variable, "")
        if "@" in urlsplit(url).netloc:
            raise UsageError(
                f"{variable} has a name or a password in it, which the proxy does not pass on; take it out"
            )
        if url and not is_proxy_url(url, daemon_url):
            given[setting] = url
    return given


class _OwnDaemon:
    """A daemon for this run, on any free port, with the user's store and settings."""

    def __init__(self, upstreams: Mapping[str, str], folder: str, *, has_token: bool) -> None:
        argv = [sys.executable, "-m", "contextfold", "serve", "--host", "127.0.0.1", "--port", "0"]
        environment = {key: value for key, value in os.environ.items() if key not in UPSTREAMS} | dict(upstreams)
        self._token = secrets.token_urlsafe(32) if has_token else ""
        environment[RUN_TOKEN_VARIABLE] = self._token
        self._log = os.path.join(folder, "daemon.log")
        with open(self._log, "wb") as log:
            # The daemon has a process session of its own, so Ctrl-C on the terminal reaches only the program. It ends
            # when its standard input does, which is when this process has ended, however that came.
            self._process = Popen(
                [*argv, "--until-stdin-ends"],
                env=environment,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
            )

    def client(self) -> DaemonClient:
        """Wait until it prints its address as its first line."""
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline() if select([stdout], [], [], DAEMON_START_S)[0] else b""
        if not line.endswith(b"\n"):
            with open(self._log, encoding="utf-8", errors="replace") as file:
                lines = file.read().strip().splitlines()
            raise StorageFailed(f"the daemon did not start: {lines[-1] if lines else 'no reason given'}")
        url = next(word for word in line.decode("utf-8", "replace").split() if word.startswith("http"))
        return DaemonClient(parse_daemon_url(url), self._token)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(DAEMON_STOP_S)
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def summary_lines(sums: Mapping[str, Any], program: str, options: Sequence[str]) -> list[str]:
    """What the run sent and saved, and how its last conversation goes on through the proxy."""
    known = PROGRAMS.get(program)
    if sums["outcome"] == "no_requests":
        why = known.elsewhere if known else f"it may not read {', '.join(UPSTREAMS)}, or have made none"
        return [f"no request to a model went through the proxy, so nothing was saved: {why}"]
    lines = [_savings_line(sums)]
    if known and sums["requests"]:
        last = sums.get("last_conversation") or {}
        words = [*known.resume, last["host_session_id"]] if last.get("host_session_id") else known.latest
        lines.append(f"to go on through the proxy: {join(['context', 'run', *options, program, *words])}")
    return lines


def _savings_line(sums: Mapping[str, Any]) -> str:
    """The tokens sent, the tokens without folding, and the difference in cost, as text."""
    failed = sums["failed_requests"]
    failures = f"; {_count(failed)} failed at the provider" if failed else ""
    if sums["outcome"] == "failed":
        return f"{_count(failed)} to a model went through the proxy and failed at the provider, so nothing was saved"
    sent = f"{_count(sums['requests'])} sent {sums['tokens_sent']:,} tokens; without folding {sums['tokens_without']:,}"
    line = sent + failures
    if sums["outcome"] == "no_saving":
        return f"{line}; nothing was saved: {' '.join(sums['reasons']) or 'nothing was folded'}"
    if sums["money"]:
        saved, base = (sums["money"][name] for name in ("saved_micros", "without_micros"))
        amount = format_dollars(abs(saved))
    else:
        saved, base = sums["cost_saved"], sums["cost_without"]
        amount = f"{abs(saved):,.0f} {TOKENS_WORTH}"
    share = format_share(abs(saved), base)
    difference = f"saved {amount}" if sums["outcome"] == "saved" else f"cost {amount} more"
    return f"{line}; {difference} ({share})"


def _count(requests: int) -> str:
    return f"{requests:,} request{'' if requests == 1 else 's'}"
