"""MCP over stdin and stdout: one line for each request and each response, in order. Knows streams, not tools.

A worker process runs the tools, so a call that hangs ends with its timeout. Memory is bounded by one line of input and
one response: while a client does not read responses, no further request is read.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from contextfold.common.posix import STDERR, fill_standard_descriptors, is_writable, write_all
from contextfold.errors import FoldError, InternalError, SettingsError, StorageFailed
from contextfold.serve.mcp.protocol import (
    INTEGER_DIGITS,
    InvalidMessage,
    McpServer,
    McpToolCall,
    RpcRequest,
    encode_error,
    encode_tool_result,
    has_envelope,
    is_initialize,
    parse_request,
    tools_of,
)
from contextfold.serve.mcp.resolve_tools import ASK_TOOLS, ResolveRunner, failure_result
from contextfold.serve.mcp.tools import FoldTool, Tool, ToolResult
from contextfold.serve.request_error import (
    BAD_REQUEST_STATUS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RequestError,
    internal_error,
    known_error,
)
from contextfold.serve.worker import Worker, WorkerFailed
from contextfold.settings import FoldSettings, Settings

if TYPE_CHECKING:
    # A server without folding tools starts without the folding service and asyncio.
    from contextfold.fold.service.fold_service import FoldService
    from contextfold.serve.serial_fold import SerialFold

# The longest line of a message, including its newline.
LINE_MAX_BYTES = 1_048_576
# A pipe accepts this many bytes at once.
LOG_LINE_BYTES = 512
STDIN, STDOUT = 0, 1

MakeFold = Callable[[FoldSettings], "FoldService"]


def serve(settings: Settings, make_fold: MakeFold, *, only: str = "") -> None:
    """Answer requests until the input ends or the client closes the output.

    `make_fold` opens the store and makes the folding service, in the worker. With the name of a cache below the root as
    `only`, the tools are those that ask it and read on.
    """
    responses = _take_stdout()
    # A parent may have ignored SIGCHLD or changed the digit limit; both are inherited.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.set_int_max_str_digits(INTEGER_DIGITS)
    if "resolve" in settings.tools and not os.path.isdir(settings.cache_root):
        log(f"the cache root {settings.cache_root} does not exist; `context build` makes caches in it")
    worker = Worker(ToolRunner(settings, make_fold, only=only).run, "fork", close_in_worker=(STDIN, responses))
    tools: list[Tool] = list(ASK_TOOLS) if only else tools_of(settings.tools)
    session = StdioSession(tools, lambda call: _run(call, worker, settings.tool_timeout_secs))
    try:
        for line in read_lines(STDIN):
            if line is None:
                log(f"a message was longer than {LINE_MAX_BYTES} bytes; it was refused, and the client may still wait")
            response = session.receive(line)
            if response is not None:
                write_all(responses, response + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        # The client has closed the pipe, so no error can be reported to it.
        pass
    except OSError as problem:
        raise StorageFailed(
            f"cannot write the answers to stdout: {problem.strerror}; start the server anew"
        ) from problem
    finally:
        worker.close()
        os.close(responses)


class StdioSession:
    """One client's conversation: the handshake, and a response for each request."""

    def __init__(self, tools: list[Tool], run: Callable[[McpToolCall], ToolResult]) -> None:
        self._server, self._run = McpServer(tools), run
        self._is_initialized = False

    def receive(self, line: bytes | None) -> bytes | None:
        """The response to a line, which is None if it was too long; None if it needs none."""
        if line is None:
            return encode_error(None, InvalidMessage(PARSE_ERROR, "Parse error"))
        if line in (b"", b"\r"):
            return None
        request_id = None
        try:
            request = parse_request(line)
            request_id = request.id
            return None if request.is_notification else self._answer(request)
        except InvalidMessage as error:
            return encode_error(error.request_id, error)
        except RequestError as error:
            return encode_error(request_id, error)
        except Exception:
            # After a bug, the next request is answered as usual.
            return encode_error(request_id, internal_error())

    def _answer(self, request: RpcRequest) -> bytes:
        if not (self._is_initialized or is_initialize(request) or has_envelope(request)):
            raise RequestError(BAD_REQUEST_STATUS, "not_initialized", "Server not initialized", code=INVALID_REQUEST)
        response = self._server.answer(request)
        self._is_initialized = self._is_initialized or is_initialize(request)
        return response if isinstance(response, bytes) else encode_tool_result(response, self._run(response))


def _run(call: McpToolCall, worker: Worker, timeout_s: float) -> ToolResult:
    """Run a tool in the worker. A call that fails or takes too long does not affect later calls."""
    result: ToolResult | RequestError
    try:
        result = worker.call(call.tool.name, call.arguments, call.meta, timeout_s=timeout_s)
    except WorkerFailed as problem:
        error = InternalError(str(problem))
        result = internal_error(error.reason) if isinstance(call.tool, FoldTool) else failure_result(error)
    if result.reason:
        log(f"{call.tool.name}: {result.reason}")
    if isinstance(result, RequestError):
        raise result
    return result


class ToolRunner:
    """Runs tools in the worker. Caches and stores stay open between calls."""

    def __init__(self, settings: Settings, make_fold: MakeFold, *, only: str = "") -> None:
        self._settings, self._make_fold = settings, make_fold
        self._resolve = ResolveRunner(settings.cache_root, only)
        self._fold_tools = {tool.name: tool for tool in tools_of(settings.tools) if isinstance(tool, FoldTool)}

    def run(self, name: str, arguments: Mapping[str, object], meta: Mapping[str, object]) -> ToolResult | RequestError:
        try:
            if name in self._fold_tools:
                return self._fold.call(self._fold_tools[name], arguments, meta)
            return self._resolve.run(name, arguments)
        except RequestError as error:
            return error
        except FoldError as problem:
            # The store cannot be opened; the next call tries again.
            return known_error(problem.code, problem.message, problem.data, reason=problem.reason)
        except SettingsError as problem:
            return internal_error(str(problem))

    @cached_property
    def _fold(self) -> SerialFold:
        from contextfold.serve.serial_fold import SerialFold

        assert self._settings.fold is not None
        return SerialFold(self._make_fold(self._settings.fold))


def read_lines(descriptor: int) -> Iterator[bytes | None]:
    """Yield each line without its newline, and None for one that is too long, when all of it has arrived."""
    try:
        # The parent may have made the stream non-blocking.
        os.set_blocking(descriptor, True)
        with open(descriptor, "rb", closefd=False) as stream:
            while line := stream.readline(LINE_MAX_BYTES):
                is_too_long = len(line) == LINE_MAX_BYTES and not line.endswith(b"\n")
                while is_too_long and line and not line.endswith(b"\n"):
                    line = stream.readline(LINE_MAX_BYTES)
                yield None if is_too_long else line.removesuffix(b"\n")
    except OSError:
        # A closed stream counts as ended.
        return


def _take_stdout() -> int:
    """Reserve stdout for responses. From now on, other output to stdout goes to stderr."""
    try:
        os.fstat(STDOUT)
    except OSError:
        raise StorageFailed("cannot write answers: stdout is closed; a host starts this with a pipe there") from None
    fill_standard_descriptors()
    responses = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return responses


def log(text: str) -> None:
    """Write one line for the operator, unless stderr would block: an unread log must not stop the server."""
    line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:LOG_LINE_BYTES])
    whole = line.encode("utf-8", "backslashreplace")[: LOG_LINE_BYTES - 1].decode("utf-8", "ignore")
    try:
        if is_writable(STDERR, 0):
            os.write(STDERR, whole.encode() + b"\n")
    except OSError:
        pass
