"""The arguments, variables and temporary files that make an agent program use the daemon. Pure.

They are valid for one process only; no file of the project or of the user changes. docs/hosts.md records which
programs were tested.
"""

from __future__ import annotations

from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLUGIN_FOLDER = "plugin"
SETTINGS_FILE = "settings.json"
_SERVER = "contextfold"


class Launch(Record):
    """Arguments before the user's own, additional variables, and temporary files.

    The names of files are relative to a temporary folder; the arguments and variables already contain its path.
    `wired` describes what the program uses.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    wired: str


def launch(program: str, daemon_url: str, folder: str, plugin: Mapping[str, str], *, tools: str) -> Launch:
    """How to start a program of this name. `plugin` has the texts of the plugin's files by name; `tools` names the
    toolsets that it is offered."""
    known = PROGRAMS.get(program)
    if known:
        return known(_DaemonUrls(daemon_url, f"{daemon_url}/mcp?tools={tools}"), folder, plugin)
    return Launch((), _base_urls(daemon_url), {}, "the proxy (by base URL); for tools and hooks see `context install`")


class _DaemonUrls(Record):
    url: str
    mcp: str


def _claude(daemon: _DaemonUrls, folder: str, plugin: Mapping[str, str]) -> Launch:
    """Claude Code can load a plugin folder for one session; it has the MCP server, the hooks and the skill."""
    files = {
        f"{PLUGIN_FOLDER}/{name}": text.replace("http://localhost:9090/mcp", daemon.mcp).replace(
            "http://localhost:9090", daemon.url
        )
        for name, text in plugin.items()
    }
    environment = {"ANTHROPIC_BASE_URL": f"{daemon.url}/proxy/anthropic"}
    return Launch(("--plugin-dir", f"{folder}/{PLUGIN_FOLDER}"), environment, files, "proxy, tools, hooks and skill")


def _codex(daemon: _DaemonUrls, _folder: str, _plugin: Mapping[str, str]) -> Launch:
    """Codex accepts overrides of its configuration with -c, each a TOML value."""
    import json

    overrides = {
        "openai_base_url": f"{daemon.url}/proxy/openai/v1",
        f"mcp_servers.{_SERVER}.url": daemon.mcp,
    }
    arguments = [word for key, value in overrides.items() for word in ("-c", f"{key}={json.dumps(value)}")]
    return Launch(tuple(arguments), _base_urls(daemon.url), {}, "proxy and tools")


def _opencode(daemon: _DaemonUrls, _folder: str, _plugin: Mapping[str, str]) -> Launch:
    """OpenCode merges a configuration from a variable over its files."""
    import json

    config = {
        "mcp": {_SERVER: {"type": "remote", "url": daemon.mcp}},
        "provider": {
            "anthropic": {"options": {"baseURL": f"{daemon.url}/proxy/anthropic/v1"}},
            "openai": {"options": {"baseURL": f"{daemon.url}/proxy/openai/v1"}},
        },
    }
    return Launch((), {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, {}, "proxy and tools")


def _gemini(daemon: _DaemonUrls, folder: str, _plugin: Mapping[str, str]) -> Launch:
    """Gemini CLI reads an additional settings file that a variable names."""
    import json

    settings = {"mcpServers": {_SERVER: {"httpUrl": daemon.mcp}}}
    environment = {
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": f"{folder}/{SETTINGS_FILE}",
        "GOOGLE_GEMINI_BASE_URL": f"{daemon.url}/proxy/gemini",
    }
    return Launch((), environment, {SETTINGS_FILE: json.dumps(settings)}, "proxy and tools")


def _base_urls(daemon_url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": f"{daemon_url}/proxy/anthropic",
        "OPENAI_BASE_URL": f"{daemon_url}/proxy/openai/v1",
        "GOOGLE_GEMINI_BASE_URL": f"{daemon_url}/proxy/gemini",
    }


PROGRAMS: dict[str, Callable[[_DaemonUrls, str, Mapping[str, str]], Launch]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "gemini": _gemini,
}
