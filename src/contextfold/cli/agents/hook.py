"""`context hook`: sends a hook's JSON from stdin to the daemon and writes the daemon's answer to stdout.

A host runs this after every tool call and waits for it, so it imports very little. Every failure ends without output
and with exit code 0: the agent must not notice that the daemon is down.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread
from collections.abc import Mapping
from json import loads

from contextfold.cli.daemon.client import daemon_address, request
from contextfold.common.network_address import DAEMON_URL, Address
from contextfold.common.posix import write_all
from contextfold.errors import EXIT_OK

# The command ends after this time, whether it waits for input, a name, a connection or an answer.
WAIT_S = 2.0
INPUT_BYTES_MAX = 16 << 20
ANSWER_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 16
STDIN, STDOUT = 0, 1
# The first digit of a successful HTTP status.
SUCCESS = 2
_BLANK = b" \t\r\n"


def run_hook(values: Mapping[str, str]) -> int:
    address = daemon_address(values.get("url", DAEMON_URL))
    token = os.environ.get(values.get("token-variable", ""), "")
    answer: list[bytes] = []
    done = allocate_lock()
    done.acquire()

    def ask() -> None:
        """Ask the daemon. It runs in a thread, because resolving a name and reading stdin have no timeout."""
        try:
            answer.append(_answer(address, values["host"], token))
        except Exception:  # noqa: S110 - no failure may disturb the agent
            pass
        finally:
            done.release()

    try:
        start_new_thread(ask, ())
    except RuntimeError:
        # The system cannot start another thread.
        return EXIT_OK
    if done.acquire(timeout=WAIT_S) and answer and _is_object_with_members(answer[0]):
        _write_answer(answer[0])
    return EXIT_OK


def _answer(address: Address, host: str, token: str) -> bytes:
    content = _input()
    if not content.strip(_BLANK):
        return b""
    status, body = request(
        address, f"/hooks/{host}", token, content=content, timeout_s=WAIT_S, bytes_max=ANSWER_BYTES_MAX
    )
    return body if status // 100 == SUCCESS else b""


def _input() -> bytes:
    content = b""
    while chunk := os.read(STDIN, READ_BYTES):
        content += chunk
        if len(content) > INPUT_BYTES_MAX:
            return b""
    return content


def _is_object_with_members(body: bytes) -> bool:
    """Whether an answer is a JSON object that is not empty. A host treats any other output as an error."""
    stripped = body.strip(_BLANK)
    # Most answers are empty objects. They need no JSON parser, whose import is slow.
    if not stripped.startswith(b"{") or stripped == b"{}":
        return False

    try:
        answer = loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and bool(answer)


def _write_answer(body: bytes) -> None:
    try:
        write_all(STDOUT, body)
    except OSError:
        # The host has closed the pipe.
        pass
