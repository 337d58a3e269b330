"""How each agent program is started with the daemon behind it: arguments, environment and temporary files.

Values in, values out: starts nothing and writes nothing. A program gets what it accepts for one process only; no file
of the project or of the user changes. Which programs were tried is recorded in docs/hosts.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from contextfold.common.record import Record

PLUGIN_FOLDER = "plugin"
SETTINGS_FILE = "settings.json"
_SERVER = "contextfold"


class Launch(Record):
    """What is put in front of the user's arguments, what is added to the environment, and the files it refers to.

    Each file is named relative to a temporary folder, whose path the arguments and variables contain already. `wired`
    says in words what the program was given.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    wired: str


def launch(program: str, daemon_url: str, folder: str, plugin: Mapping[str, str]) -> Launch:
    """How to start a program, known by the last part of its path. `plugin` maps the plugin's file names to texts."""
    known = _PROGRAMS.get(program)
    if known:
        return known(daemon_url, folder, plugin)
    return Launch((), _base_urls(daemon_url), {}, "the proxy (by base URL); for tools and hooks see `context install`")


def _claude(daemon_url: str, folder: str, plugin: Mapping[str, str]) -> Launch:
    """Claude Code loads a plugin folder for one session: MCP server, hooks and skill at once."""
    files = {
        f"{PLUGIN_FOLDER}/{name}": text.replace("http://localhost:9090", daemon_url) for name, text in plugin.items()
    }
    environment = {"ANTHROPIC_BASE_URL": f"{daemon_url}/proxy/anthropic"}
    return Launch(("--plugin-dir", f"{folder}/{PLUGIN_FOLDER}"), environment, files, "proxy, tools, hooks and skill")


def _codex(daemon_url: str, _folder: str, _plugin: Mapping[str, str]) -> Launch:
    """Codex overrides its configuration with -c, a TOML value each."""
    overrides = {
        "openai_base_url": f"{daemon_url}/proxy/openai/v1",
        f"mcp_servers.{_SERVER}.url": f"{daemon_url}/mcp",
    }
    arguments = [word for key, value in overrides.items() for word in ("-c", f"{key}={json.dumps(value)}")]
    return Launch(tuple(arguments), _base_urls(daemon_url), {}, "proxy and tools")


def _opencode(daemon_url: str, _folder: str, _plugin: Mapping[str, str]) -> Launch:
    """OpenCode merges a configuration from a variable over its files."""
    config = {
        "mcp": {_SERVER: {"type": "remote", "url": f"{daemon_url}/mcp"}},
        "provider": {
            "anthropic": {"options": {"baseURL": f"{daemon_url}/proxy/anthropic/v1"}},
            "openai": {"options": {"baseURL": f"{daemon_url}/proxy/openai/v1"}},
        },
    }
    return Launch((), {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, {}, "proxy and tools")


def _gemini(daemon_url: str, folder: str, _plugin: Mapping[str, str]) -> Launch:
    """Gemini CLI reads a settings file of the system from wherever a variable names it."""
    settings = {"mcpServers": {_SERVER: {"httpUrl": f"{daemon_url}/mcp"}}}
    environment = {
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": f"{folder}/{SETTINGS_FILE}",
        "GOOGLE_GEMINI_BASE_URL": f"{daemon_url}/proxy/gemini",
    }
    return Launch((), environment, {SETTINGS_FILE: json.dumps(settings)}, "proxy and tools")


def _base_urls(daemon_url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": f"{daemon_url}/proxy/anthropic",
        "OPENAI_BASE_URL": f"{daemon_url}/proxy/openai/v1",
        "GOOGLE_GEMINI_BASE_URL": f"{daemon_url}/proxy/gemini",
    }


_PROGRAMS: dict[str, Callable[[str, str, Mapping[str, str]], Launch]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "gemini": _gemini,
}
PROGRAMS: Sequence[str] = tuple(_PROGRAMS)
