"""The arguments, variables and temporary files that make an agent program use the daemon. Pure.

They are valid for one process only; no file of the project or of the user changes. docs/hosts.md records which
programs were tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import NamedTuple

from contextfold.common.network_address import DAEMON_URL, MCP_PATH
from contextfold.hosts.programs import SERVER

PLUGIN_FOLDER = "plugin"
SETTINGS_FILE = "settings.json"


class Launch(NamedTuple):
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
    mcp = f"{daemon_url}/mcp?tools={tools}"
    anthropic = {"ANTHROPIC_BASE_URL": f"{daemon_url}/proxy/anthropic"}
    gemini = {"GOOGLE_GEMINI_BASE_URL": f"{daemon_url}/proxy/gemini"}
    openai_url = f"{daemon_url}/proxy/openai/v1"
    every_base_url = anthropic | {"OPENAI_BASE_URL": openai_url} | gemini
    match program:
        case "claude":
            # Claude Code can load a plugin folder for one session; it has the MCP server, the hooks and the skill.
            files = {
                f"{PLUGIN_FOLDER}/{name}": text.replace(DAEMON_URL + MCP_PATH, mcp).replace(DAEMON_URL, daemon_url)
                for name, text in plugin.items()
            }
            arguments = ("--plugin-dir", f"{folder}/{PLUGIN_FOLDER}")
            return Launch(arguments, anthropic, files, "proxy, tools, hooks and skill")
        case "codex":
            # Codex accepts overrides of its configuration with -c, each a TOML value.
            overrides = {"openai_base_url": openai_url, f"mcp_servers.{SERVER}.url": mcp}
            words = [word for key, value in overrides.items() for word in ("-c", f"{key}={_json(value)}")]
            return Launch(tuple(words), every_base_url, {}, "proxy and tools")
        case "opencode":
            # OpenCode merges a configuration from a variable over its files.
            providers = {"anthropic": f"{daemon_url}/proxy/anthropic/v1", "openai": openai_url}
            config = {
                "mcp": {SERVER: {"type": "remote", "url": mcp}},
                "provider": {name: {"options": {"baseURL": url}} for name, url in providers.items()},
            }
            return Launch((), {"OPENCODE_CONFIG_CONTENT": _json(config)}, {}, "proxy and tools")
        case "gemini":
            # Gemini CLI reads an additional settings file that a variable names.
            settings = _json({"mcpServers": {SERVER: {"httpUrl": mcp}}})
            variables = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": f"{folder}/{SETTINGS_FILE}"} | gemini
            return Launch((), variables, {SETTINGS_FILE: settings}, "proxy and tools")
    return Launch((), every_base_url, {}, "the proxy (by base URL); for tools and hooks see `context install`")


def _json(value: object) -> str:
    # Imported here because most programs need no JSON, and should start as if they had been called directly.

    return dumps(value)
