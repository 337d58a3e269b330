"""`context hook`: one hook's JSON from stdin to the daemon, and its answer to stdout.

A host runs this after every tool call and waits for it, so it starts on almost nothing, and whatever is wrong ends in
silence and exit code 0: an agent must not notice that its daemon is down.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread

from contextfold.cli.daemon.request import request
from contextfold.cli.parse import UsageError
from contextfold.common.network_address import DAEMON_URL, BadAddress, address_from
from contextfold.error_codes import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from contextfold.common.network_address import Address

WAIT_S = 2.0  # for everything: input, name, connection, answer
INPUT_BYTES_MAX = 16 << 20
ANSWER_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 16
STDIN, STDOUT = 0, 1
# The first digit of such a status.
SUCCESS = 2
_BLANK = b" \t\r\n"


def run(values: Mapping[str, str]) -> int:
    try:
        address = address_from(values.get("url", DAEMON_URL))
    except BadAddress as problem:
        raise UsageError(f"--url cannot be used: {problem}") from problem
    token = os.environ.get(values.get("token-variable", ""), "")
    answer: list[bytes] = []
    done = allocate_lock()
    done.acquire()

    def ask() -> None:
        """In a thread, because some waits have no time-out of their own: a name's resolution, a stdin left open."""
        try:
            answer.append(_answer(address, values["host"], token))
        except Exception:  # noqa: S110 - whatever it is, it matters less than the agent's work
            pass
        finally:
            done.release()

    try:
        start_new_thread(ask, ())
    except RuntimeError:  # the system has no thread to spare
        return EXIT_OK
    if done.acquire(timeout=WAIT_S) and answer and _is_worth_telling(answer[0]):
        _tell(answer[0])
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


def _is_worth_telling(body: bytes) -> bool:
    """Whether it is a JSON object with something in it: a host takes anything else for a fault."""
    stripped = body.strip(_BLANK)
    if not stripped.startswith(b"{") or stripped == b"{}":  # as mostly; reading JSON is not cheap to begin with
        return False
    from json import loads

    try:
        answer = loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and bool(answer)


def _tell(body: bytes) -> None:
    from contextfold.common.descriptors import write_all

    try:
        write_all(STDOUT, body)
    except OSError:
        pass  # nobody reads it any more
