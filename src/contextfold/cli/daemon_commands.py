"""The table of the commands of the daemon and its store: serve, doctor, and the group `store`."""

from __future__ import annotations

from contextfold.cli.command import CONFIG, JSON, STORE, TOKEN_VARIABLE, URL, Command, Option, setting_option
from contextfold.settings import NATS

OF_NATS = tuple(setting_option(name)._replace(is_advanced=True) for name in NATS)

COMMANDS: tuple[Command, ...] = (
    Command(
        "serve",
        "run the daemon, or the stdio server",
        (
            "Without --stdio: the daemon, at http://localhost:9090. It has the folding and resolve tools (/mcp),",
            "the proxy (/proxy), hooks, and a page to look at (/). `contextd` is the same.",
            "With --stdio: one agent's server on stdin and stdout, which its host starts; `mcp-context-server`",
            "is the same.",
        ),
        (
            "context serve",
            "context serve --port 9100 --cache-root caches",
            "context serve --host 0.0.0.0 --token-file tokens --allow-host ctx.example.org",
            "context serve --store nats://n1:4222,nats://n2:4222 --nats-creds daemon.creds --nats-replicas 3",
            "context serve --stdio --cache-root caches",
        ),
        (
            Option("--stdio", "speak on stdin and stdout instead of HTTP"),
            setting_option("host"),
            setting_option("port"),
            setting_option("cache-root", takes_folder=True),
            STORE,
            *map(setting_option, ("tools", "branch-reminder", "recall-at-start", "token-file", "allow-host")),
            *map(setting_option, ("anthropic-upstream", "openai-upstream", "gemini-upstream", "fold-results")),
            setting_option("prompt-cache-s")._replace(is_advanced=True),
            CONFIG,
            *OF_NATS,
        ),
        has_settings=True,
    ),
    Command(
        "doctor",
        "check that daemon, hooks and proxy work together",
        (
            "Check what has to work together, a line each, with what to do where it does not: the daemon, its",
            "version and its store, the hooks of each program and when they last reported, the proxy and when",
            "it last forwarded a request, the nearest document cache. Exits with 1 if there is a problem.",
        ),
        ("context doctor", "context doctor --url http://localhost:9100"),
        (URL, TOKEN_VARIABLE, JSON),
    ),
    Command(
        "service",
        "run the daemon in the background, from log-in on",
        (
            "Manage the daemon as a service of your own user: systemd on Linux, launchd on macOS. It restarts",
            "when it fails, and its log is where the system keeps logs. Options of install become options of",
            "the daemon.",
        ),
        (
            "context service install",
            "context service install --port 9100 --cache-root ~/caches",
            "context service status",
            "context service uninstall",
        ),
        (
            setting_option("host"),
            Option("--port", "the port to listen on (default: 9090)", "N"),
            Option("--cache-root", "the folder that holds the caches", "DIR", takes_folder=True),
            STORE,
            setting_option("token-file"),
            CONFIG,
            URL,
            TOKEN_VARIABLE,
        ),
        argument=Option(
            "action", "what to do", "ACTION", required=True, choices=("install", "uninstall", "start", "stop", "status")
        ),
    ),
    Command(
        "token",
        "make a token that gives access to the daemon",
        (
            "Make a bearer token for an owner, print it, and add its hash to the file that `context serve` is",
            "given. The token itself is not stored, so it is shown only now. A running daemon takes the file's",
            "new state at once: a new line grants access, a removed line revokes it.",
        ),
        (
            "context token alice --token-file tokens",
            "context token build-robot --token-file /etc/contextfold/tokens > robot.token",
        ),
        (
            Option(
                "--token-file", "the file of owners and token hashes; created if it is missing", "FILE", required=True
            ),
        ),
        argument=Option(
            "owner", "the owner whose sessions the token opens: letters, digits and . _ @ -", "OWNER", required=True
        ),
    ),
    Command(
        "store export",
        "write everything that the store holds to a file",
        (
            "Write all sessions of every owner, live and ended, with their receipts, archive, summaries and",
            "left-out results to one new file: a backup, or the way to another store. Daemons may keep running.",
            "The file is compressed if its name ends in .gz. docs/export.md describes the format.",
        ),
        (
            "context store export backup.jsonl.gz",
            "context store export backup.jsonl --store nats://n1:4222,nats://n2:4222",
        ),
        (STORE, JSON, CONFIG, *OF_NATS),
        Option("file", "the file to write; it must not exist", "FILE", required=True),
    ),
    Command(
        "store import",
        "read an exported file into an empty store",
        (
            "Verify an exported file, store everything in it and compare. The store must be empty; a file is",
            "created if it is missing. Into a file it is all or nothing. An import into NATS that was interrupted",
            "says what to delete before it is repeated.",
        ),
        (
            "context store import backup.jsonl.gz --store nats://n1:4222",
            "context store import backup.jsonl.gz --store sqlite:restored.db --json",
        ),
        (STORE, JSON, CONFIG, *OF_NATS),
        Option("file", "the exported file", "FILE", required=True),
    ),
)
