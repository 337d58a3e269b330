"""MCP over stdin and stdout: lines in, lines out, one answer for each request, in order. Knows streams, not tools.

The standard library alone, because starting is most of what a client waits for. Work is done by a worker process, so a
stuck call costs its time-out and nothing more. Memory is bounded by one line of input and one answer: while a client
does not read, nothing more is read from it.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from contextfold.common.descriptors import READABLE, WRITABLE, wait, write_all
from contextfold.error_codes import JSON_RPC_CODES
from contextfold.errors import FoldError, InternalError, StorageFailed
from contextfold.serve.mcp.jsonrpc import INTEGER_DIGITS, LINE_MAX_BYTES, PARSE_ERROR, RpcError, error_line
from contextfold.serve.mcp.protocol import Call, Session
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS, failure
from contextfold.serve.mcp.resolve_tools import call as run_tool
from contextfold.serve.mcp.tools import Answer, Refusal, ResolveTool
from contextfold.serve.worker import Worker
from contextfold.settings import SettingsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from contextfold.app import FoldDesk
    from contextfold.resolve.root import CacheRoot
    from contextfold.serve.mcp.tools import Tool
    from contextfold.settings import Settings

CHUNK_BYTES = 1 << 16
LOG_LINE_BYTES = 512  # what a pipe takes at once
HEAD_LENGTH_BYTES = 4
STDIN, STDOUT, STDERR = 0, 1, 2


class TooLong:
    """Stands for a line that was not kept."""


def serve(settings: Settings) -> None:
    """Answer until the input ends or nobody reads the answers any more."""
    answers = _take_stdout()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever starts us may ignore it, and that would be inherited
    sys.set_int_max_str_digits(INTEGER_DIGITS)  # likewise a variable of the environment
    session = Session(_tools(settings))
    worker = Worker(_Desk(settings).respond, close_in_worker=(STDIN, answers))
    try:
        for line in lines(STDIN):
            answer = _answer(line, session, worker, settings)
            if answer is not None:
                write_all(answers, answer)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the client is gone, and with it whoever an error could be told to
    except OSError as problem:
        raise StorageFailed(
            f"cannot write the answers to stdout: {problem.strerror}; start the server anew"
        ) from problem
    finally:
        worker.stop()


def _tools(settings: Settings) -> list[Tool]:
    tools: list[Tool] = list(RESOLVE_TOOLS) if "resolve" in settings.tools else []
    if "fold" in settings.tools:
        from contextfold.serve.mcp.fold_tools import FOLD_TOOLS

        tools += FOLD_TOOLS
    return tools


def _answer(line: bytes | TooLong, session: Session, worker: Worker, settings: Settings) -> bytes | None:
    if isinstance(line, TooLong):
        return error_line(RpcError(PARSE_ERROR, "Parse error"))
    if line in (b"", b"\r"):
        return None
    answer = session.receive(line)
    if isinstance(answer, Call):
        return session.finish(answer, _run(answer, worker, settings))
    return answer


def _run(call: Call, worker: Worker, settings: Settings) -> Answer | Refusal:
    answer: Answer | Refusal
    try:
        request = json.dumps([call.tool.name, call.arguments, call.meta]).encode("ascii")
        answer = _opened(worker.ask(request, settings.tool_timeout_s))
    except Exception as problem:  # no answer in time, or a bug of ours: either costs one call
        answer = _failed(call, InternalError(f"{type(problem).__name__}: {problem}"))
    if answer.reason:
        log(f"{call.tool.name}: {answer.reason}")
    return answer


def _failed(call: Call, problem: InternalError) -> Answer | Refusal:
    return failure(problem) if isinstance(call.tool, ResolveTool) else _refused(problem)


def _refused(problem: InternalError) -> Refusal:
    return Refusal(JSON_RPC_CODES[problem.code], problem.code, problem.message, "null", problem.reason, "")


class _Desk:
    """Where the worker does its work: a request in, an answer out, what was opened kept."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root: CacheRoot | None = None
        self._fold: FoldDesk | None = None

    def respond(self, request: bytes) -> bytes:
        name, arguments, meta = json.loads(request)
        tool = next(tool for tool in _tools(self._settings) if tool.name == name)
        if isinstance(tool, ResolveTool):
            return _sealed(run_tool(tool, self._opened_root(), arguments))
        try:
            return _sealed(self._opened_fold().call(tool, arguments, meta))
        except FoldError as problem:  # the store cannot be opened; the next call tries again
            data = json.dumps(dict(problem.data))
            number = JSON_RPC_CODES[problem.code]
            return _sealed(Refusal(number, problem.code, problem.message, data, problem.reason, ""))
        except SettingsError as problem:
            return _sealed(_refused(InternalError(str(problem))))

    def _opened_fold(self) -> FoldDesk:
        if self._fold is None:
            from contextfold.app import FoldDesk

            assert self._settings.fold is not None
            self._fold = FoldDesk(self._settings.fold)
        return self._fold

    def _opened_root(self) -> CacheRoot:
        if self._root is None:
            from contextfold.resolve.root import CacheRoot

            self._root = CacheRoot(self._settings.cache_root)
        return self._root


def _sealed(answer: Answer | Refusal) -> bytes:
    """An answer as bytes: what is small as JSON, then its text as it is."""
    text, rest = (answer.text, answer[1:]) if isinstance(answer, Answer) else ("", tuple(answer))
    head = json.dumps([isinstance(answer, Answer), rest]).encode("ascii")
    return len(head).to_bytes(HEAD_LENGTH_BYTES, "little") + head + text.encode()


def _opened(sealed: bytes) -> Answer | Refusal:
    text_at = HEAD_LENGTH_BYTES + int.from_bytes(sealed[:HEAD_LENGTH_BYTES], "little")
    is_answer, rest = json.loads(sealed[HEAD_LENGTH_BYTES:text_at])
    return Answer(sealed[text_at:].decode(), *rest) if is_answer else Refusal(*rest)


def lines(descriptor: int) -> Iterator[bytes | TooLong]:
    """Each line without its newline. One that is too long is passed over as it comes, never held."""
    line = bytearray()
    too_long = False
    while chunk := _read(descriptor):
        *ended, begun = chunk.split(b"\n")
        for piece in ended:
            too_long = too_long or len(line) + len(piece) >= LINE_MAX_BYTES
            yield TooLong() if too_long else bytes(line) + piece
            line.clear()
            too_long = False
        too_long = too_long or len(line) + len(begun) >= LINE_MAX_BYTES
        if too_long:
            line.clear()
        else:
            line += begun
    if line or too_long:
        yield TooLong() if too_long else bytes(line)


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:  # whoever gave us this stream made it so
            wait(descriptor, READABLE)
        except OSError:
            return b""  # closed


def _take_stdout() -> int:
    """Keep stdout for answers alone: whatever a library prints from now on goes to stderr."""
    for stream, descriptor, flags in ((sys.stdin, STDIN, os.O_RDONLY), (sys.stderr, STDERR, os.O_WRONLY)):
        if stream is None:  # closed: whatever is opened next would be taken for it
            _open_as(descriptor, flags)
    try:
        answers = os.dup(STDOUT)
    except OSError:
        raise StorageFailed("cannot write answers: stdout is closed; a host starts this with a pipe there") from None
    os.dup2(STDERR, STDOUT)
    return answers


def _open_as(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)


def log(text: str) -> None:
    """One line for the operator, if stderr takes it at once: a log that nobody reads must not stop the server."""
    line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:LOG_LINE_BYTES])
    whole = line.encode("utf-8", "backslashreplace")[: LOG_LINE_BYTES - 1].decode("utf-8", "ignore")
    try:
        if wait(STDERR, WRITABLE, 0):
            os.write(STDERR, whole.encode() + b"\n")
    except OSError:
        pass
