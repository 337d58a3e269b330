"""The stdio server: framing, messages, handshake, the stateless era, start and end, in raw bytes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from contextfold import __version__
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS
from contextfold.serve.mcp.tools import ToolResult
from contextfold.serve.stdio import StdioSession
from contextfold.settings import read_settings
from tests.serve.stdio_client import (
    ALIVE,
    ASK,
    GET,
    INITIALIZE,
    MODERN_META,
    PARSE_ERROR,
    PING,
    RESOLVE,
    Server,
    after_handshake,
    call,
    environment,
    error_code_of,
    exchange,
    modern,
    protocol_error,
    request,
    resident_mb,
    text_of,
)
from tests.support.machine import COMMAND, DOCUMENTS, command_of, interpreters, run_command, write_files

LIMIT = 1_048_576


def broken_call(_call: object) -> ToolResult:
    raise ValueError("a bug")


PYTHONS = interpreters()
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One root for all tests of this file, because building a cache takes time and no test changes it."""
    folder = tmp_path_factory.mktemp("stdio")
    built = run_command(
        "build", "--sources", write_files(folder / "docs", DOCUMENTS), "--cache", folder / "caches" / "docs"
    )
    assert built.code == 0, built.err
    return folder / "caches"


class TestLines:
    def test_a_line_may_have_1_mib_with_its_newline(self, root: Path) -> None:
        head, tail = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"', b'"}}\n'
        fits = head + b"x" * (LIMIT - len(head) - len(tail)) + tail
        assert len(fits) == LIMIT
        assert after_handshake(root, fits, PING) == [{"jsonrpc": "2.0", "id": 1, "result": {}}, ALIVE]
        assert after_handshake(root, fits.replace(b"xx", b"xxx", 1), PING) == [PARSE_ERROR, ALIVE]

    def test_a_too_long_line_is_not_stored_in_memory(self, root: Path) -> None:
        with Server(root) as server:
            server.ask(INITIALIZE)
            before = resident_mb(server.process.pid)
            for _ in range(200):
                server.input.write(b"x" * LIMIT)
            server.input.write(b"\n")
            assert server.answer() == PARSE_ERROR
            assert server.ask(PING) == ALIVE
            assert resident_mb(server.process.pid) < before + 8

    def test_a_last_line_without_newline_is_answered(self, root: Path) -> None:
        assert after_handshake(root, PING.rstrip(b"\n")) == [ALIVE]
        assert after_handshake(root, b"x" * LIMIT) == [PARSE_ERROR]
        assert after_handshake(root, b"{") == [PARSE_ERROR]

    def test_empty_lines_are_ignored(self, root: Path) -> None:
        assert after_handshake(root, b"\n\r\n\n", PING, b"\r\n") == [ALIVE]

    def test_lines_may_end_with_crlf(self, root: Path) -> None:
        assert after_handshake(root, PING.replace(b"\n", b"\r\n")) == [ALIVE]

    def test_a_line_may_arrive_in_pieces_and_many_lines_at_once(self, root: Path) -> None:
        with Server(root) as server:
            for at in range(len(INITIALIZE)):
                server.input.write(INITIALIZE[at : at + 1])
            assert server.answer()["id"] == 0
            server.input.write(PING * 500)
            assert [server.answer() for _ in range(500)] == [ALIVE] * 500


class TestRequests:
    def test_an_exception_in_a_tool_is_an_internal_error(self) -> None:
        session = StdioSession(list(RESOLVE_TOOLS), broken_call)
        answer = session.receive(modern("tools/call", {"name": "context.list_caches"}, 0))
        assert isinstance(answer, bytes)
        assert json.loads(answer) == protocol_error(-32603, "Internal error", request_id=0)

    @pytest.mark.parametrize(
        ("depth", "is_accepted"), [(120, True), (124, True), (130, False), (984, False), (5000, False)]
    )
    def test_json_is_accepted_up_to_a_fixed_depth(self, depth: int, is_accepted: bool, root: Path) -> None:
        nested = b"[" * depth + b"]" * depth
        line = call("context.resolve", {**RESOLVE, "budget": "NESTED"}).replace(b'"NESTED"', nested)
        (answer,) = after_handshake(root, line)
        if is_accepted:
            assert error_code_of(answer) == "invalid_budget"
        else:
            assert answer == PARSE_ERROR

    def test_long_invalid_lines_are_refused(self, root: Path) -> None:
        units = (b'\\"', b'"', b"\\", b'\\"[', b'"{')
        lines = [b"[" * 128 + b'"' + unit * (900_000 // len(unit)) + b"\n" + PING for unit in units]
        assert after_handshake(root, *lines) == [PARSE_ERROR, ALIVE] * len(lines)

    def test_brackets_in_a_string_do_not_count_as_nesting(self, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "query": '[{"\\' * 500}))
        assert answer["result"]["isError"] is False


class TestHandshake:
    @pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call", "nonsense", "server/discover"])
    def test_requests_before_the_handshake_are_refused(self, method: str, root: Path) -> None:
        refused = protocol_error(-32600, "Server not initialized")
        answers = exchange(root, request(method), INITIALIZE, PING)
        assert (answers[0], answers[2]) == (refused, ALIVE)

    @pytest.mark.parametrize(
        ("requested", "answered"),
        [
            *((version, version) for version in VERSIONS),
            ("2026-07-28", VERSIONS[-1]),
            ("1999-01-01", VERSIONS[-1]),
            (5, VERSIONS[-1]),
        ],
    )
    def test_the_clients_version_is_used_if_it_is_supported(self, requested: object, answered: str, root: Path) -> None:
        (answer,) = exchange(root, request("initialize", {"protocolVersion": requested}))
        result = answer["result"]
        assert result["protocolVersion"] == answered
        assert result["capabilities"] == {"tools": {}, "resources": {}}
        assert result["serverInfo"] == {"name": "contextfold", "version": __version__}
        for tool in RESOLVE_TOOLS:
            assert f"{tool.name}: " in result["instructions"]

    def test_params_and_the_initialized_notification_may_be_missing(self, root: Path) -> None:
        answers = exchange(root, b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n', PING)
        assert answers[0]["result"]["protocolVersion"] == VERSIONS[-1]
        assert answers[1] == ALIVE


class TestStatelessEra:
    def test_requests_need_no_handshake_and_results_have_the_form_of_the_era(self, root: Path) -> None:
        discovered, listed, called = exchange(
            root,
            modern("server/discover"),
            modern("tools/list", request_id="b"),
            modern("tools/call", {"name": "context.list_caches", "arguments": {}}),
        )
        info = {"io.modelcontextprotocol/serverInfo": {"name": "contextfold", "version": __version__}}
        for answer in (discovered, listed, called):
            assert answer["result"]["resultType"] == "complete"
            assert answer["result"]["_meta"] == info
        for answer in (discovered, listed):
            assert (answer["result"]["ttlMs"], answer["result"]["cacheScope"]) == (0, "private")
        assert discovered["result"]["supportedVersions"] == ["2026-07-28"]
        assert discovered["result"]["capabilities"] == {"tools": {}, "resources": {}}
        assert listed["id"] == "b"
        assert text_of(called) == '{"caches":[{"path":"docs","has_manifest":true}]}'

    def test_both_eras_give_the_same_tools_and_the_same_text(self, root: Path) -> None:
        calls = {"context.resolve": RESOLVE, "context.ask": ASK, "context.get": GET}
        with_handshake = after_handshake(
            root, request("tools/list"), *(call(name, arguments) for name, arguments in calls.items())
        )
        stateless = exchange(
            root,
            modern("tools/list"),
            *(modern("tools/call", {"name": name, "arguments": arguments}) for name, arguments in calls.items()),
        )
        assert with_handshake[0]["result"]["tools"] == stateless[0]["result"]["tools"]
        assert [text_of(answer) for answer in with_handshake[1:]] == [text_of(answer) for answer in stateless[1:]]

    def test_a_stateless_request_is_answered_after_a_handshake_and_does_not_replace_one(self, root: Path) -> None:
        assert "resultType" in after_handshake(root, modern("tools/list"))[0]["result"]
        answers = exchange(root, modern("tools/list"), request("tools/list"))
        assert answers[1] == protocol_error(-32600, "Server not initialized")

    @pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25", ""])
    def test_an_unsupported_version_is_refused_with_the_supported_ones(self, version: str, root: Path) -> None:
        meta = {**MODERN_META, "io.modelcontextprotocol/protocolVersion": version}
        (answer,) = exchange(root, request("tools/list", {"_meta": meta}))
        data = {"supported": ["2026-07-28"], "requested": version}
        assert answer["error"] == {"code": -32022, "message": "Unsupported protocol version", "data": data}


class TestStartAndEnd:
    def start(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        whole_env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]} | (env or {})
        return subprocess.run(
            [COMMAND, *argv], env=whole_env, input=INITIALIZE, capture_output=True, timeout=60, check=False
        )

    @pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "abc", "٣", " 5", "+", "1e3"])
    def test_an_invalid_timeout_is_an_error_with_exit_code_1(self, value: str, root: Path) -> None:
        result = self.start("serve", "--stdio", env=environment(root, CONTEXT_TOOL_TIMEOUT_SECS=value))
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr.count(b"\n") == 1
        assert b"CONTEXT_TOOL_TIMEOUT_SECS" in result.stderr

    @pytest.mark.parametrize("value", ["30", "007", "+30", "9" * 40])
    def test_a_positive_integer_is_a_valid_timeout(self, value: str, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.list_caches"), CONTEXT_TOOL_TIMEOUT_SECS=value)
        assert answer["result"]["isError"] is False

    @pytest.mark.parametrize("env", [{}, {"CONTEXT_CACHE_ROOT": ""}])
    def test_a_missing_cache_root_is_an_error_with_exit_code_1(self, env: dict[str, str]) -> None:
        result = self.start("serve", "--stdio", env=env)
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr.count(b"\n") == 1
        assert b"--cache-root" in result.stderr

    def test_the_timeout_of_a_call_is_30_seconds_by_default(self) -> None:
        assert read_settings({"CONTEXT_CACHE_ROOT": "x"}, {}).tool_timeout_secs == 30
        variables = {"CONTEXT_CACHE_ROOT": "x", "CONTEXT_TOOL_TIMEOUT_SECS": "1"}
        assert read_settings(variables, {}).tool_timeout_secs == 1

    @pytest.mark.parametrize("stdout", ["> /dev/full", ">&-"])
    def test_a_stdout_that_cannot_be_written_is_an_io_error(self, stdout: str, root: Path) -> None:
        script = f"echo '{INITIALIZE.decode().strip()}' | {COMMAND} serve --stdio {stdout}"
        result = subprocess.run(
            ["bash", "-c", script], env=environment(root), capture_output=True, timeout=60, check=False
        )
        assert result.returncode == 6
        assert b"stdout" in result.stderr

    def test_the_option_overrides_the_variable(self, root: Path, tmp_path: Path) -> None:
        env = environment(tmp_path / "nowhere")
        argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--cache-root", root]
        lines = INITIALIZE + call("context.resolve", RESOLVE)
        result = subprocess.run(argv, input=lines, env=env, capture_output=True, timeout=60, check=True)
        assert json.loads(result.stdout.splitlines()[1])["result"]["isError"] is False

    def test_the_server_has_a_command_of_its_own(self, root: Path) -> None:
        server = COMMAND.parent / "mcp-context-server"
        result = subprocess.run(
            [server], input=INITIALIZE, env=environment(root), capture_output=True, timeout=60, check=True
        )
        assert json.loads(result.stdout)["id"] == 0

    def test_at_the_end_of_input_every_request_is_answered_and_the_exit_code_is_0(self, root: Path) -> None:
        lines = [call("context.resolve", RESOLVE, request_id=number) for number in range(40)]
        assert [answer["id"] for answer in after_handshake(root, *lines)] == list(range(40))
        assert exchange(root) == []

    def test_with_a_closed_stdin_no_other_descriptor_is_read(self, root: Path) -> None:
        our_end, server_end = socket.socketpair()
        with our_end:
            argv = ["bash", "-c", f"exec {COMMAND} serve --stdio <&-"]
            process = subprocess.Popen(argv, stdout=server_end.fileno(), env=environment(root))
            server_end.close()
            our_end.sendall(INITIALIZE)
            assert process.wait(timeout=30) == 0
            our_end.settimeout(60)
            # The server has not read what we sent.
            with contextlib.suppress(ConnectionResetError):
                assert our_end.recv(1) == b""

    def test_output_of_libraries_goes_to_stderr(self, root: Path, tmp_path: Path) -> None:
        noise = "import os, sys\nprint('stray', flush=True)\nos.write(1, b'raw')\nos.system('echo shouted')\n"
        program = f"""
from contextfold.serve.mcp import resolve_tools as tools
real = tools._list_caches
def noisy(root, arguments):
    exec({noise!r})
    return real(root, arguments)
first, listing, *others = tools.RESOLVE_TOOLS
tools.RESOLVE_TOOLS = (first, listing._replace(handler=noisy), *others)
from contextfold.cli.main import run
run()
"""
        (tmp_path / "noisy.py").write_text(program)
        argv: list[str | Path] = [COMMAND.parent / "python", tmp_path / "noisy.py", "serve", "--stdio"]
        lines = INITIALIZE + call("context.list_caches") + PING
        result = subprocess.run(argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(answers) == 3
        assert answers[2] == ALIVE
        for word in (b"stray", b"raw", b"shouted"):
            assert word in result.stderr

    def test_an_error_is_one_line_on_stderr_without_document_text(self, own_root: Path) -> None:
        root = own_root
        document = json.loads((root / "docs" / "documents" / "19835fc46fd4.json").read_text())
        document["id"] = "secret words " * 5 + "é" * 300
        (root / "docs" / "documents" / "19835fc46fd4.json").write_text(json.dumps(document))
        argv: list[str | Path] = [COMMAND, "serve", "--stdio"]
        lines = INITIALIZE + call("context.resolve", RESOLVE)
        result = subprocess.run(argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True)
        assert result.stderr.count(b"\n") == 1
        assert b"context.resolve: cache_invalid: " in result.stderr
        assert b"secret" not in result.stderr
        result.stderr.decode("utf-8")


class TestEveryPython:
    @pytest.mark.parametrize("version", list(PYTHONS)[1:])
    def test_every_python_gives_the_same_bytes(self, version: str, root: Path) -> None:
        lines = (
            INITIALIZE
            + PING
            + b"".join(
                [
                    b"nope\n",
                    b"[" * 900 + b"]" * 900 + b"\n",
                    request("tools/list"),
                    modern("server/discover"),
                    call("context.resolve", RESOLVE),
                    call("context.resolve", {**RESOLVE, "query": "\ud800"}),
                    call("context.resolve", {**RESOLVE, "budget": 10**4000}),
                    call("context.list_caches"),
                    call("context.inspect_cache", {"cache": "docs"}),
                    call("context.inspect_cache", {"cache": "../docs"}),
                ]
            )
        )
        outputs = []
        for command in ([str(COMMAND)], command_of(PYTHONS[version])):
            argv = [*command, "serve", "--stdio"]
            result = subprocess.run(
                argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True
            )
            outputs.append(result.stdout)
        assert outputs[0] == outputs[1]
        assert outputs[0].count(b"\n") == 12
