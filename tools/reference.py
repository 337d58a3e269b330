"""Write docs/reference.md from the code: tools, commands, settings, routes, errors and figures, as they are.

python tools/reference.py docs/reference.md
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

from starlette.routing import Route

from contextfold import errors
from contextfold.cli.command import Command, Option
from contextfold.cli.help import COMMANDS
from contextfold.errors import EXIT_CODES, HTTP_STATUSES, JSON_RPC_CODES
from contextfold.fold.ports.store import Store
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve.http.exchange import OPEN_PATHS, PAGE_PATH, WEB_PATH
from contextfold.serve.http.limits import Buckets
from contextfold.serve.http.mcp_endpoint import DaemonServices
from contextfold.serve.http.routes import DaemonApplication
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS
from contextfold.serve.mcp.tools import listing
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.resolvers import Resolvers
from contextfold.settings import SETTINGS, TOOL_TIMEOUT_S, Settings, read_daemon_settings
from contextfold.stores.no_store import NoStore

COMMAND = "make reference"
TOOLS = (*RESOLVE_TOOLS, *FOLD_TOOLS)
NONE = "–"
RULES = ("minimum", "maximum", "minLength", "maxLength", "pattern", "enum", "default")  # of a schema, besides the type


def page() -> str:
    """The whole page."""
    parts = [
        ["# Reference", f"Written from the code by `{COMMAND}`; edit that, not this."],
        ["## Tools", *_tools()],
        ["## Commands", *_commands()],
        ["## Settings", *_settings()],
        ["## HTTP", *_routes()],
        ["## Errors", *_errors()],
        ["## Metrics", *_figures()],
    ]
    return "\n\n".join(block for part in parts for block in part) + "\n"


def _tools() -> Iterator[str]:
    yield "At `/mcp`, and over stdio those that `--tools` names. [folding.md](folding.md) tells what folding answers."
    for tool in TOOLS:
        told = listing(tool)
        yield f"### {tool.name}"
        yield _sentence(str(told["description"]))
        schema = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", told["inputSchema"])
        required = cast("Iterable[str]", schema.get("required", ()))
        arguments = [
            (f"`{name}`", _type(about), "yes" if name in required else "", str(about.get("description", "")))
            for name, about in schema["properties"].items()
        ]
        yield _table(("argument", "type", "required", "meaning"), arguments) if arguments else "It takes no argument."


def _type(about: Mapping[str, object]) -> str:
    rules = [f"{rule} `{_json(about[rule])}`" for rule in RULES if rule in about]
    return ", ".join([str(about.get("type", NONE)), *rules])


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _commands() -> Iterator[str]:
    yield "`context COMMAND --help` says the same in a terminal, with examples."
    for command in COMMANDS:
        yield f"### context {command.name}"
        yield " ".join(line for line in command.description if line)
        given = [*([command.argument] if command.argument else []), *command.options]
        if given:
            yield _table(("", "meaning"), [(f"`{_flag(option)}`", _meaning(option, command)) for option in given])


def _flag(option: Option) -> str:
    return f"{option.name} {option.metavar}".rstrip() if option.name.startswith("-") else option.metavar


def _meaning(option: Option, command: Command) -> str:
    choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
    default = f"; `{option.default}` if not given" if option.default else ""
    needed = " (required)" if option.required and option != command.argument else ""
    return f"{option.help}{choices}{default}{needed}"


def _settings() -> Iterator[str]:
    yield "Of `context serve`. A flag goes before a variable, a variable before the file that `--config` names."
    (serve,) = [command for command in COMMANDS if command.name == "serve"]
    flags = {option.key for option in serve.options}
    yield _table(
        ("in the file", "variable", "flag", "default", "meaning"),
        [
            (
                f"`{setting.name.replace('-', '_')}`",
                f"`{setting.variable}`",
                f"`--{setting.name}`" if setting.name in flags else NONE,
                f"`{setting.default}`" if setting.default else NONE,
                setting.help,
            )
            for setting in SETTINGS.values()
        ],
    )


def routes() -> list[tuple[str, str, str]]:
    """Method, path and purpose of every route of a daemon with all tools."""
    services = DaemonServices(
        FoldService(cast(Store, NoStore()), standard_scrubber()),
        Resolvers(Settings(cache_root="", tool_timeout_secs=TOOL_TIMEOUT_S, tools=(), fold=None)),
        Buckets(1, 1),
        Metrics(tool.name for tool in TOOLS),
        str,
    )
    proxied = read_daemon_settings({}, {}).proxy
    app = DaemonApplication(TOOLS, services, proxied)
    told = [
        (method, route.path, (inspect.getdoc(route.endpoint) or "").partition("\n")[0])
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted(route.methods - {"HEAD"} if route.methods else ["any"])
    ]
    return sorted(told, key=lambda route: (route[1], route[0]))


def _routes() -> Iterator[str]:
    anybodys = ", ".join(f"`{path}`" for path in (*sorted(OPEN_PATHS), PAGE_PATH, f"{WEB_PATH}…"))
    yield f"Every `GET` can be a `HEAD`. Where the daemon has tokens, all paths need one but {anybodys}."
    yield _table(("", "purpose"), [(f"`{method} {path}`", purpose) for method, path, purpose in routes()])


def _errors() -> Iterator[str]:
    yield (
        "The code is `data.kind` where the daemon answers with an HTTP status, and `code` in what a failed resolve "
        "prints. Commands end with the exit code; 0 is success, and 1 is a wrong command line or setting too."
    )
    drawn = re.findall(r"[├└]── (\w+) +(\w+) {2,}(.+)", errors.__doc__ or "")
    yield _table(
        ("code", "exit code", "JSON-RPC", "HTTP", "message", "when"),
        [
            (
                f"`{code}`",
                str(EXIT_CODES[code]),
                str(JSON_RPC_CODES[code]),
                str(HTTP_STATUSES.get(code, NONE)),
                _message(getattr(errors, name)),
                when,
            )
            for name, code, when in drawn
            if code in EXIT_CODES
        ],
    )


def _message(kind: type[errors.ContextError]) -> str:
    """What an error says; where that depends on the case, with the names of what is filled in."""
    if "message" in vars(kind):
        return kind.message
    parameters = inspect.signature(kind).parameters.values()
    return kind(*(f"*{each.name}*" for each in parameters if each.default is each.empty)).message


def _figures() -> Iterator[str]:
    yield (
        "At `/metrics`, besides the process's own (`process_…`). A histogram is read as `…_bucket`, `…_sum` and "
        "`…_count`. [observability.md](observability.md) tells what to look at."
    )
    yield _table(
        ("metric", "type", "labels", "meaning"),
        [
            (f"`{figure.name}`", figure.kind, ", ".join(f"`{label}`" for label in figure.labels), figure.help)
            for figure in Metrics([]).figures
        ],
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in (head, *rows)]
    return "\n".join([f"| {lines[0]} |", f"|{'---|' * len(head)}", *(f"| {line} |" for line in lines[1:])])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
