"""`context doctor`: checks the installation; prints a line for each check and the remedy for each problem.

`context open` opens the daemon's page. Inside `context run`, both mean the daemon of that run.
The doctor reads the files of agent programs and asks the daemon; it changes nothing. `run` collects the facts;
`diagnose`, which is pure, evaluates them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from contextfold import __version__
from contextfold.cli.daemon_client import (
    PAGE_VARIABLE,
    DaemonClient,
    DaemonSilent,
    add_daemon_options,
    client_from,
    is_proxy_url,
)
from contextfold.cli.host_files import claude_settings_here, claude_variables, find_member, read_if_valid
from contextfold.cli.output import escape, print_answer, print_error, print_on_terminal
from contextfold.cli.parser import CommandParser
from contextfold.errors import EXIT_OK, CacheMissing
from contextfold.hosts.programs import CLAUDE_CODE, HOSTS, PLUGIN
from contextfold.resolve.files import nearest_caches

PROBLEMS_FOUND = 1
OK, NOTE, PROBLEM = "ok", "note", "problem"
MARKS = {OK: "✓", NOTE: "·", PROBLEM: "✗"}
BASE_URL_VARIABLES = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")


class Finding(NamedTuple):
    level: str
    text: str
    remedy: str = ""


class Situation(NamedTuple):
    """The collected facts. `status` is the daemon's report, or None; then `silence` says why there is none.

    `hooked` has the hosts that have our hooks, each with its file. `base_urls` has the variables for the providers'
    URLs, with their values.
    """

    url: str
    status: Mapping[str, Any] | None
    silence: str
    is_ready: bool
    hooked: Mapping[str, str]
    base_urls: Mapping[str, str]
    caches: Sequence[str]


def declare_open(parser: CommandParser) -> None:
    parser.describe(
        """
        Open the daemon's page in your browser: what agents did, what was folded, what that saved. Where
        there is no browser, its address is printed.
        """,
        "context open",
        "context open --url http://localhost:9100",
    )
    add_daemon_options(parser)
    parser.set_defaults(run=run_open)


def run_open(args: argparse.Namespace) -> int:
    # It imports subprocess, and the check of a set-up starts nothing.
    import webbrowser

    client = client_from(args)
    try:
        client.status()
    except DaemonSilent as problem:
        print_error(f"{problem}; start the daemon with `context serve`, or `context service install`")
        return PROBLEMS_FOUND
    standing = os.environ.get(PAGE_VARIABLE, "") if args.url is None else ""
    page = f"{standing or client.address.url}/"
    if client.token and not standing:
        print_on_terminal(f"the page asks for a token: {client.token}")
    if not _has_browser() or not webbrowser.open(page):
        print_answer(f"{page}\n")
    return EXIT_OK


def _has_browser() -> bool:
    """Whether a browser has a screen. Otherwise one in the terminal would be started over the agent."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def declare_doctor(parser: CommandParser) -> None:
    parser.describe(
        """
        Check what has to work together, a line each, with what to do where it does not: the daemon, its
        version and its store, the hooks of each program and when they last reported, the proxy and when
        it last forwarded a request, the nearest document cache. Exits with 1 if there is a problem.
        """,
        "context doctor",
        "context doctor --url http://localhost:9100",
    )
    add_daemon_options(parser)
    parser.add_switch("--json", "print JSON, for programs")
    parser.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    client = client_from(args)
    findings = list(diagnose(_situation(client)))
    if args.json:
        print_answer(json.dumps([finding._asdict() for finding in findings]) + "\n")
    else:
        print_answer("".join(_format_finding(finding) for finding in findings))
    return PROBLEMS_FOUND if any(finding.level == PROBLEM for finding in findings) else EXIT_OK


def diagnose(seen: Situation) -> Iterator[Finding]:
    """Evaluate the facts; the most fundamental findings come first."""
    yield Finding(OK, f"contextfold {__version__} on Python {sys.version.split()[0]}")
    yield from _daemon(seen)
    yield from _hooks(seen)
    yield from _proxy(seen)
    yield from _caches(seen)


def _daemon(seen: Situation) -> Iterator[Finding]:
    if seen.status is None:
        is_taken = "is not" in seen.silence
        remedy = (
            "another program has this port: start ours elsewhere with `context serve --port 9100` and give --url"
            if is_taken
            else "start it: `context serve`, or in the background `context service install`"
        )
        needed = is_taken or bool(seen.hooked) or bool(seen.base_urls)
        yield Finding(PROBLEM if needed else NOTE, f"no daemon: {seen.silence}", remedy)
        return
    version, started = seen.status["version"], seen.status["started_at"]
    yield Finding(OK, f"the daemon answers at {seen.url} (version {version}, since {started})")
    if version != __version__:
        yield Finding(PROBLEM, f"the daemon is version {version}, this command {__version__}", "restart the daemon")
    if not seen.is_ready:
        yield Finding(
            PROBLEM,
            "the daemon's store takes no commits",
            "look at its log: the disk may be full, or the NATS servers away",
        )


def _hooks(seen: Situation) -> Iterator[Finding]:
    if not seen.hooked:
        yield Finding(NOTE, "no agent program has our hooks", "`context install claude-code`, or `context run claude`")
    reports: Mapping[str, str] = seen.status.get("hosts", {}) if seen.status else {}
    for host, path in seen.hooked.items():
        title = HOSTS[host].title
        if seen.status is None:
            yield Finding(PROBLEM, f"{title} has our hooks ({path}) and no daemon hears them", "start the daemon")
        elif host in reports:
            yield Finding(OK, f"{title} last reported at {reports[host]}")
        else:
            yield Finding(
                PROBLEM,
                f"{title} has our hooks ({path}) and has reported nothing since the daemon started",
                f"restart {title}; if that does not help: `context install {host} --url {seen.url}`",
            )
    for host in sorted(reports.keys() - seen.hooked.keys()):
        yield Finding(OK, f"{HOSTS[host].title if host in HOSTS else host} last reported at {reports[host]}")


def _proxy(seen: Situation) -> Iterator[Finding]:
    through: Mapping[str, str] = seen.status.get("proxy", {}) if seen.status else {}
    for provider, at in sorted(through.items()):
        yield Finding(OK, f"the proxy last forwarded a request to {provider} at {at}")
    # Inside `context run` the address names the run before the proxy.
    here = re.compile(re.escape(seen.url) + "(/run/[^/]+)?/proxy/")
    ours = {name: url for name, url in seen.base_urls.items() if here.match(url)}
    for name, url in seen.base_urls.items():
        if name not in ours and is_proxy_url(url, seen.url):
            yield Finding(PROBLEM, f"{name} is {url}, which is not this daemon", f"set it to an address at {seen.url}")
    if seen.status is not None and not through:
        yield Finding(
            NOTE if not ours else PROBLEM,
            "no request to a model has come through the proxy, so nothing can be saved in one"
            + (f"; {', '.join(ours)} points at it" if ours else ""),
            "start the agent with `context run`, or set ANTHROPIC_BASE_URL as docs/proxy.md shows",
        )


def _caches(seen: Situation) -> Iterator[Finding]:
    for cache in seen.caches:
        yield Finding(OK, f"`context ask` uses the cache {cache}")
    if not seen.caches:
        yield Finding(NOTE, "there is no document cache here, below or above", "`context build DIR` makes one")


def _situation(client: DaemonClient) -> Situation:
    status, silence, is_ready = None, "", False
    try:
        status = client.status()
        is_ready = client.is_ready()
    except DaemonSilent as problem:
        silence = str(problem)
    return Situation(client.address.url, status, silence, is_ready, _hooked_hosts(), _base_urls(), _nearest_caches())


def _hooked_hosts() -> dict[str, str]:
    """The agent programs that have our hooks, each with the first file that switches them on."""
    for path in claude_settings_here():
        if find_member(read_if_valid(path), ("enabledPlugins", PLUGIN)) is True:
            return {CLAUDE_CODE: path}
    return {}


def _base_urls() -> dict[str, str]:
    """Base URLs from the environment and from the `env` of Claude Code's settings."""
    variables = {**os.environ, **claude_variables()}
    return {name: variables[name] for name in BASE_URL_VARIABLES if variables.get(name)}


def _nearest_caches() -> list[str]:
    try:
        return nearest_caches(os.getcwd())
    except CacheMissing:
        return []


def _format_finding(finding: Finding) -> str:
    remedy = f"    {escape(finding.remedy)}\n" if finding.remedy else ""
    return f"{MARKS[finding.level]} {escape(finding.text)}\n{remedy}"
