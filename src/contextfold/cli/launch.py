"""How `context run` starts each agent program: the arguments, variables and temporary files that connect it.

What the user has configured stays: a base URL, a provider, headers, the files of an administrator. So the programs' own
configuration is read here, as far as it decides whether their requests can go through the proxy.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from contextfold.cli.host_files import claude_variables, find_member, read_if_valid, read_object, user_file
from contextfold.cli.install import plugin_files
from contextfold.cli.output import escape
from contextfold.cli.parser import UsageError
from contextfold.errors import StorageFailed
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

PLUGIN_FOLDER, MCP_CONFIG, SETTINGS_FILE = "plugin", "mcp.json", "settings.json"
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
TOKEN_HEADER = "X-Context-Token"  # noqa: S105 - the name of a header
ANTHROPIC_URL_VARIABLE, OPENAI_URL_VARIABLE = "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"
GEMINI_URL_VARIABLE = "GOOGLE_GEMINI_BASE_URL"
GEMINI_SETTINGS_VARIABLE = "GEMINI_CLI_SYSTEM_SETTINGS_PATH"
GEMINI_SETTINGS = {
    "darwin": "/Library/Application Support/GeminiCli/settings.json",
    "linux": "/etc/gemini-cli/settings.json",
}
# A line of a file of variables: a name, and a value in quotes of either kind or without.
_VARIABLE = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=[ \t]*(?:"([^"]*)"|'([^']*)'|([^#\s]*))""", re.MULTILINE)
# The providers of OpenCode that have a proxy, each with the path below it that OpenCode's client expects.
OPENCODE_PROVIDERS = {"anthropic": "anthropic/v1", "openai": "openai/v1", "google": "gemini/v1beta"}


class Launch(NamedTuple):
    """Arguments before the user's own, additional variables, and temporary files.

    The names of files are relative to a temporary folder; the arguments and variables already contain its path.
    `features` says what the program can use: the proxy, tools and so on.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    features: str


class Launcher(NamedTuple):
    """Connects programs to a daemon, in whose address the run is named.

    `token` is the daemon's, or empty; `folder` is for temporary files; `environment` is what the program would have
    without us. With `documents` the program gets a second server that asks these.
    """

    daemon: Daemon
    token: str
    folder: str
    environment: Mapping[str, str]
    documents: Documents | None = None

    def launch(self, program: str) -> Launch:
        match program:
            case "claude":
                return self._launch_claude()
            case "codex":
                return self._launch_codex()
            case "opencode":
                return self._launch_opencode()
            case "gemini":
                return self._launch_gemini()
        features = "the proxy (by base URL); for tools see `context install`"
        return Launch((), self._base_urls(), {}, features)

    def _base_urls(self) -> dict[str, str]:
        return {
            ANTHROPIC_URL_VARIABLE: f"{self.daemon.url}/proxy/anthropic",
            OPENAI_URL_VARIABLE: f"{self.daemon.url}/proxy/openai/v1",
            GEMINI_URL_VARIABLE: f"{self.daemon.url}/proxy/gemini",
        }

    def _document_servers(self, host: str) -> dict[str, object]:
        """The second server as the host describes it, by its name; empty if there are no documents."""
        return {DOCUMENTS_SERVER: entry(HOSTS[host], self.documents)} if self.documents else {}

    def _servers(self, host: str) -> dict[str, object]:
        return {SERVER: entry(HOSTS[host], self.daemon), **self._document_servers(host)}

    def _variables(self, url_variable: str, headers_variable: str, separator: str) -> dict[str, str]:
        """The variables with the base URL, and with the token among the headers that the user has set."""
        variables = {url_variable: self._base_urls()[url_variable]}
        if self.token:
            headers = self.environment.get(headers_variable, "")
            variables[headers_variable] = f"{headers}{separator}{TOKEN_HEADER}: {self.token}".lstrip(separator)
        return variables

    def _launch_claude(self) -> Launch:
        # The server has the name under which people install it, and the plugin has the name of the installed one:
        # Claude Code then takes these instead of those, so no tool is offered and no hook is called twice.
        command = f"{quote(sys.executable)} -m contextfold"
        texts = plugin_texts(plugin_files(), self.daemon, command, self._document_servers("claude-code"))
        files = {MCP_CONFIG: texts.pop(MCP_FILE)}
        files |= {f"{PLUGIN_FOLDER}/{name}": text for name, text in texts.items()}
        variables = self._variables(ANTHROPIC_URL_VARIABLE, "ANTHROPIC_CUSTOM_HEADERS", "\n")
        # The user's settings may name the base URL of the installed daemon, and come before the environment.
        files[SETTINGS_FILE] = json.dumps({"env": variables})
        # The form with = takes one value; otherwise the option would take the user's words after it, too.
        arguments = (
            f"--mcp-config={self.folder}/{MCP_CONFIG}",
            f"--settings={self.folder}/{SETTINGS_FILE}",
            "--plugin-dir",
            f"{self.folder}/{PLUGIN_FOLDER}",
        )
        return Launch(arguments, variables, files, "proxy, tools, hooks and skill")

    def _launch_codex(self) -> Launch:
        """Codex accepts overrides of its configuration with -c, each a TOML value.

        A whole table replaces the user's own of that name.
        """
        base_url = self._base_urls()[OPENAI_URL_VARIABLE]
        chosen = _codex_provider()
        overrides: dict[str, object] = {}
        if not chosen and self.token:
            overrides["model_provider"] = SERVER
            overrides[f"model_providers.{SERVER}"] = {
                "name": "OpenAI",
                "base_url": base_url,
                "wire_api": "responses",
                "requires_openai_auth": True,
                "env_http_headers": {TOKEN_HEADER: self.daemon.token_variable},
            }
        elif not chosen:
            overrides["openai_base_url"] = base_url
        token = {"bearer_token_env_var": self.daemon.token_variable} if self.token else {}
        servers = {SERVER: {"url": self.daemon.mcp, **token}, **self._document_servers("codex")}
        overrides |= {f"mcp_servers.{name}": server for name, server in servers.items()}
        words = tuple(word for key, value in overrides.items() for word in ("-c", f"{key}={_toml(value)}"))
        if chosen:
            why = f"its config.toml names another provider, {escape(chosen)}"
            return Launch(words, {}, {}, f"tools, without the proxy: {why}")
        return Launch(words, self._base_urls(), {}, "proxy and tools")

    def _launch_opencode(self) -> Launch:
        gateways = _opencode_gateways(self.environment)
        config = json.dumps(self._opencode_config(gateways))
        kept = f"; {' and '.join(gateways)} without the proxy, by your own base URL" if gateways else ""
        return Launch((), {"OPENCODE_CONFIG_CONTENT": config}, {}, f"proxy and tools{kept}")

    def _opencode_config(self, gateways: Sequence[str]) -> dict[str, object]:
        """OpenCode merges a configuration from a variable over its files. What the user has in the variable stays."""
        try:
            given = json.loads(self.environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise UsageError("OPENCODE_CONFIG_CONTENT is not an object of plain JSON, so nothing can be added to it")
        variable = self.daemon.token_variable
        headers = {"headers": {TOKEN_HEADER: f"{{env:{variable}}}"}} if variable else {}
        providers = {
            name: {"options": {"baseURL": f"{self.daemon.url}/proxy/{path}", **headers}}
            for name, path in OPENCODE_PROVIDERS.items()
            if name not in gateways
        }
        return _merge(_merge({"provider": providers}, given), {"mcp": self._servers("opencode")})

    def _launch_gemini(self) -> Launch:
        variables = self._variables(GEMINI_URL_VARIABLE, "GEMINI_CLI_CUSTOM_HEADERS", ", ")
        try:
            settings = self._gemini_settings()
        except StorageFailed as problem:
            return Launch((), variables, {}, f"the proxy, without tools: {problem.reason}")
        if others := _folder_open_to_others(self.folder):
            reason = f"others may write to {others}; set XDG_RUNTIME_DIR to another place"
            hint = f"it reads no settings there, because {reason}"
            if _lacks_login(self.environment):
                return Launch((), {}, {}, f"neither proxy nor tools: {hint}")
            return Launch((), variables, {}, f"the proxy, without tools: {hint}")
        variables[GEMINI_SETTINGS_VARIABLE] = f"{self.folder}/{SETTINGS_FILE}"
        return Launch((), variables, {SETTINGS_FILE: json.dumps(settings)}, "proxy and tools")

    def _gemini_settings(self) -> dict[str, object]:
        """Gemini CLI reads this file over all others. It may be an administrator's, so what is in it stays."""
        path = _administrators_file(self.environment)
        given = (read_object(path, has_comments=True) if path else None) or {}
        added: dict[str, object] = {"mcpServers": self._servers("gemini-cli")}
        if _lacks_login(self.environment):
            added["security"] = {"auth": {"selectedType": "gemini-api-key"}}
        return _merge(given, added)


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


def _administrators_file(environment: Mapping[str, str]) -> str:
    return environment.get(GEMINI_SETTINGS_VARIABLE) or GEMINI_SETTINGS.get(sys.platform, "")


def _lacks_login(environment: Mapping[str, str]) -> bool:
    """Whether there is a key that Gemini CLI would not take: with a base URL, its settings must say that it is used."""
    gemini = HOSTS["gemini-cli"]
    files = (_administrators_file(environment), user_file(gemini), gemini.project_file)
    settings = [read_if_valid(path, has_comments=True) for path in files if path]
    selects_login = any(find_member(each, ("security", "auth", "selectedType")) for each in settings)
    return bool(environment.get("GEMINI_API_KEY")) and not selects_login


def _folder_open_to_others(folder: str) -> str:
    """The folder itself or one above it to which other users may write; empty if there is none."""
    while folder != os.path.dirname(folder):
        with suppress(OSError):
            if os.stat(folder).st_mode & WRITABLE_BY_OTHERS:
                return folder
        folder = os.path.dirname(folder)
    return ""


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


def read_environment(program: str) -> dict[str, str]:
    """The variables that a program would use without us, with those of its own settings."""
    environment = dict(os.environ)
    if program == "claude":
        return environment | claude_variables()
    if program == "codex":
        url = find_member(read_if_valid(user_file(HOSTS["codex"])), ("openai_base_url",))
        return environment | ({OPENAI_URL_VARIABLE: url} if isinstance(url, str) else {})
    if program == "gemini":
        # Here the environment comes first.
        return _gemini_variables() | environment
    return environment


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
