"""The files that make the daemon a background service: a systemd user unit and a launchd agent. Pure text."""

from __future__ import annotations

from collections.abc import Sequence

UNIT_NAME = "contextfold.service"
AGENT_LABEL = "io.contextfold.daemon"
RESTART_S = 2


def systemd_unit(argv: Sequence[str]) -> str:
    """A unit that runs a command and restarts it when it fails. Its log goes to the journal."""
    return f"""\
[Unit]
Description=contextfold daemon: folds agents' context and answers from documents
StartLimitIntervalSec=60
StartLimitBurst=10

[Service]
ExecStart={" ".join(map(_systemd_word, argv))}
Restart=on-failure
RestartSec={RESTART_S}
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _systemd_word(word: str) -> str:
    """Quote an argument for systemd; escape specifiers, variables and backslashes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def launchd_agent(argv: Sequence[str], log: str) -> bytes:
    """An agent that runs a command after log-in and restarts it when it fails."""
    import plistlib

    return plistlib.dumps(
        {
            "Label": AGENT_LABEL,
            "ProgramArguments": list(argv),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    )
