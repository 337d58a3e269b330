"""The stdio server, tested row by row of its table, in raw bytes."""

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
from contextfold.settings import settings_from
from tests.serve.wire import (
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
from tests.support.clauses import covers
from tests.support.machine import COMMAND, DOCUMENTS, command_of, context, interpreters, write_files

LIMIT = 1_048_576


def broken_call(_call: object) -> ToolResult:
    raise ValueError("a bug")


PYTHONS = interpreters()
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here, which do not change it; building a cache takes as long as starting a server."""
    folder = tmp_path_factory.mktemp("stdio")
    built = context(
        "build", "--sources", write_files(folder / "docs", DOCUMENTS), "--cache", folder / "caches" / "docs"
    )
    assert built.code == 0, built.err
    return folder / "caches"


def invalid_request(request_id: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32600, "message": "Invalid Request"}}


class TestLines:
    @covers("seed-002#jsonrpc", "stdio.md#framing")
    def test_what_is_no_json_is_a_parse_error_and_the_next_line_is_served(self, root: Path) -> None:
        lines = [
            b"nope",
            b"{",
            b'{"jsonrpc":"2.0","id":1,"method":"ping"',
            b"\xff\xfe",
            b'{"jsonrpc":"2.0","id":1,"method":"\xc3"}',
            b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
            '{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"),
            b"NaN",
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":Infinity}}',
            b'{"jsonrpc":"2.0","id":1,"method":"pi\x01ng"}',
            b" ",
            b"[" * 100_000,
        ]
        answers = after_handshake(root, *(part for line in lines for part in (line, b"\n", PING)))
        for line, error, alive in zip(lines, answers[::2], answers[1::2], strict=True):
            assert (error, alive) == (PARSE_ERROR, ALIVE), line[:30]

    @covers("seed-002#message-size", "stdio.md#framing")
    def test_the_limit_is_1_mib_with_the_newline(self, root: Path) -> None:
        head, tail = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"', b'"}}\n'
        fits = head + b"x" * (LIMIT - len(head) - len(tail)) + tail
        assert len(fits) == LIMIT
        assert after_handshake(root, fits, PING) == [{"jsonrpc": "2.0", "id": 1, "result": {}}, ALIVE]
        assert after_handshake(root, fits.replace(b"xx", b"xxx", 1), PING) == [PARSE_ERROR, ALIVE]

    @covers("seed-002#message-size", "stdio.md#framing")
    def test_a_long_line_is_not_kept_in_memory(self, root: Path) -> None:
        with Server(root) as server:
            server.ask(INITIALIZE)
            before = resident_mb(server.process.pid)
            for _ in range(200):
                server.input.write(b"x" * LIMIT)
            server.input.write(b"\n")
            assert server.answer() == PARSE_ERROR
            assert server.ask(PING) == ALIVE
            assert resident_mb(server.process.pid) < before + 8

    @covers("stdio.md#framing", "stdio.md#end-of-input")
    def test_a_last_line_without_newline_is_answered_too(self, root: Path) -> None:
        assert after_handshake(root, PING.rstrip(b"\n")) == [ALIVE]
        assert after_handshake(root, b"x" * LIMIT) == [PARSE_ERROR]
        assert after_handshake(root, b"{") == [PARSE_ERROR]

    @covers("stdio.md#framing")
    def test_empty_lines_are_ignored(self, root: Path) -> None:
        assert after_handshake(root, b"\n\r\n\n", PING, b"\r\n") == [ALIVE]

    def test_lines_may_end_as_on_windows(self, root: Path) -> None:
        assert after_handshake(root, PING.replace(b"\n", b"\r\n")) == [ALIVE]

    @covers("seed-001#transport", "seed-002#jsonrpc", "seed-002#methods", "stdio.md#ping-and-list", "stdio.md#streams")
    def test_a_line_may_come_in_pieces_and_many_at_once(self, root: Path) -> None:
        with Server(root) as server:
            for at in range(len(INITIALIZE)):
                server.input.write(INITIALIZE[at : at + 1])
            assert server.answer()["id"] == 0
            server.input.write(PING * 500)
            assert [server.answer() for _ in range(500)] == [ALIVE] * 500


class TestRequests:
    @covers("seed-002#jsonrpc", "stdio.md#framing")
    def test_what_is_no_request_is_told_so(self, root: Path) -> None:
        cases: list[tuple[object, object]] = [
            ([], None),
            ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], None),
            (5, None),
            ("ping", None),
            (None, None),
            (True, None),
            ({}, None),
            ({"id": 7, "method": "ping"}, 7),
            ({"jsonrpc": "1.0", "id": 7, "method": "ping"}, 7),
            ({"jsonrpc": 2.0, "id": "a", "method": "ping"}, "a"),
            ({"jsonrpc": "2.0", "id": 7}, 7),
            ({"jsonrpc": "2.0", "id": 7, "method": 5}, 7),
            ({"jsonrpc": "2.0", "id": 7, "method": None}, 7),
            ({"jsonrpc": "2.0", "id": 7, "result": {}}, 7),
            ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None),
            ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, None),
            ({"jsonrpc": "2.0", "id": True, "method": "ping"}, None),
            ({"jsonrpc": "2.0", "id": [1], "method": "ping"}, None),
            ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, None),
            ({"jsonrpc": "1.0", "method": "ping"}, None),
            ({"jsonrpc": "2.0", "method": 5}, None),
        ]
        answers = after_handshake(
            root, *(part for each, _ in cases for part in (json.dumps(each).encode(), b"\n", PING))
        )
        for (message, request_id), refused, alive in zip(cases, answers[::2], answers[1::2], strict=True):
            assert (refused, alive) == (invalid_request(request_id), ALIVE), message

    @covers("stdio.md#framing")
    def test_an_id_comes_back_as_it_was(self, root: Path) -> None:
        ids = (0, -5, 2**70, 10**4299, -(10**4299), "", "é", "\ud800", "a\nb", "0")
        answers = after_handshake(root, *(request("ping", request_id=request_id) for request_id in ids))
        assert answers == [{"jsonrpc": "2.0", "id": request_id, "result": {}} for request_id in ids]

    @covers("stdio.md#framing")
    def test_an_id_of_endless_digits_is_no_id(self, root: Path) -> None:
        line = b'{"jsonrpc":"2.0","id":' + b"9" * 500_000 + b',"method":"ping"}\n'
        assert after_handshake(root, line, PING) == [invalid_request(None), ALIVE]

    @covers("seed-002#methods", "stdio.md#eras", "stdio.md#methods")
    def test_notifications_are_never_answered(self, root: Path) -> None:
        methods = [
            "notifications/initialized",
            "notifications/cancelled",
            "ping",
            "tools/call",
            "initialize",
            "nonsense",
        ]
        lines = [json.dumps({"jsonrpc": "2.0", "method": method}).encode() + b"\n" for method in methods]
        assert exchange(root, *lines) == []
        assert after_handshake(root, *lines, PING) == [ALIVE]

    @covers("seed-002#jsonrpc", "stdio.md#methods")
    def test_an_unknown_method_is_named(self, root: Path) -> None:
        methods = ("nonsense", "prompts/list", "server/discover", "TOOLS/LIST", "")
        answers = after_handshake(root, *map(request, methods))
        assert answers == [protocol_error(-32601, f"Method not found: {method}") for method in methods]

    def test_params_may_be_null(self, root: Path) -> None:
        line = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}\n'
        assert after_handshake(root, line) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]

    def test_a_bug_of_ours_costs_one_answer(self) -> None:
        session = StdioSession(list(RESOLVE_TOOLS), broken_call)
        answer = session.receive(modern("tools/call", {"name": "context.list_caches"}, 0))
        assert isinstance(answer, bytes)
        assert json.loads(answer) == protocol_error(-32603, "Internal error", request_id=0)

    @pytest.mark.parametrize(("depth", "read"), [(120, True), (124, True), (130, False), (984, False), (5000, False)])
    def test_nesting_is_read_to_the_same_depth_everywhere(self, depth: int, read: bool, root: Path) -> None:
        nested = b"[" * depth + b"]" * depth
        line = call("context.resolve", {**RESOLVE, "budget": "NESTED"}).replace(b'"NESTED"', nested)
        (answer,) = after_handshake(root, line)
        if read:
            assert error_code_of(answer) == "invalid_budget"
        else:
            assert answer == PARSE_ERROR

    def test_no_line_takes_long_to_be_refused(self, root: Path) -> None:
        units = (b'\\"', b'"', b"\\", b'\\"[', b'"{')
        lines = [b"[" * 128 + b'"' + unit * (900_000 // len(unit)) + b"\n" + PING for unit in units]
        assert after_handshake(root, *lines) == [PARSE_ERROR, ALIVE] * len(lines)

    def test_brackets_in_a_text_are_no_nesting(self, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "query": '[{"\\' * 500}))
        assert answer["result"]["isError"] is False

    @covers("stdio.md#tool-calls")
    @pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call", "initialize"])
    def test_params_that_are_no_object_are_invalid(self, method: str, root: Path) -> None:
        shapes: list[object] = [[], 5, "x", True]
        lines = [request(method, params) for params in shapes]
        assert after_handshake(root, *lines) == [protocol_error(-32602, "Invalid params")] * len(lines)


class TestHandshake:
    @covers("seed-002#methods", "stdio.md#eras")
    @pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call", "nonsense", "server/discover"])
    def test_before_it_every_request_is_refused(self, method: str, root: Path) -> None:
        refused = protocol_error(-32600, "Server not initialized")
        answers = exchange(root, request(method), INITIALIZE, PING)
        assert (answers[0], answers[2]) == (refused, ALIVE)

    @covers("seed-000#transport", "seed-002#methods", "stdio.md#eras")
    @pytest.mark.parametrize(
        ("asked", "given"),
        [
            *((version, version) for version in VERSIONS),
            ("2026-07-28", VERSIONS[-1]),
            ("1999-01-01", VERSIONS[-1]),
            (5, VERSIONS[-1]),
        ],
    )
    def test_the_version_is_the_clients_if_we_speak_it(self, asked: object, given: str, root: Path) -> None:
        (answer,) = exchange(root, request("initialize", {"protocolVersion": asked}))
        result = answer["result"]
        assert result["protocolVersion"] == given
        assert result["capabilities"] == {"tools": {}, "resources": {}}
        assert result["serverInfo"] == {"name": "contextfold", "version": __version__}
        for tool in RESOLVE_TOOLS:
            assert f"{tool.name}: " in result["instructions"]

    @covers("seed-002#methods", "stdio.md#eras", "stdio.md#ping-and-list")
    def test_its_params_may_be_missing_and_the_acknowledgement_is_not_waited_for(self, root: Path) -> None:
        answers = exchange(root, b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n', PING)
        assert answers[0]["result"]["protocolVersion"] == VERSIONS[-1]
        assert answers[1] == ALIVE


class TestModernEra:
    @covers("stdio.md#eras")
    def test_it_needs_no_handshake_and_answers_in_its_own_form(self, root: Path) -> None:
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

    @covers("seed-001#protocol-requirements", "stdio.md#eras")
    def test_both_eras_give_the_same_tools_and_the_same_text(self, root: Path) -> None:
        calls = {"context.resolve": RESOLVE, "context.ask": ASK, "context.get": GET}
        old = after_handshake(root, request("tools/list"), *(call(name, given) for name, given in calls.items()))
        new = exchange(
            root,
            modern("tools/list"),
            *(modern("tools/call", {"name": name, "arguments": given}) for name, given in calls.items()),
        )
        assert old[0]["result"]["tools"] == new[0]["result"]["tools"]
        assert [text_of(answer) for answer in old[1:]] == [text_of(answer) for answer in new[1:]]

    @covers("stdio.md#eras")
    def test_an_envelope_is_served_after_a_handshake_too_and_does_not_replace_one(self, root: Path) -> None:
        assert "resultType" in after_handshake(root, modern("tools/list"))[0]["result"]
        answers = exchange(root, modern("tools/list"), request("tools/list"))
        assert answers[1] == protocol_error(-32600, "Server not initialized")

    @covers("stdio.md#eras")
    def test_there_is_no_ping_and_no_initialize_in_it(self, root: Path) -> None:
        assert exchange(root, modern("ping")) == [protocol_error(-32601, "Method not found: ping")]
        assert exchange(root, modern("initialize")) == [protocol_error(-32601, "Method not found: initialize")]

    @covers("stdio.md#eras")
    @pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25", ""])
    def test_another_version_is_refused_with_those_we_speak(self, version: str, root: Path) -> None:
        meta = {**MODERN_META, "io.modelcontextprotocol/protocolVersion": version}
        (answer,) = exchange(root, request("tools/list", {"_meta": meta}))
        data = {"supported": ["2026-07-28"], "requested": version}
        assert answer["error"] == {"code": -32022, "message": "Unsupported protocol version", "data": data}

    @covers("stdio.md#eras")
    def test_half_an_envelope_is_invalid(self, root: Path) -> None:
        for meta in (
            {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
            {**MODERN_META, "io.modelcontextprotocol/protocolVersion": 5},
        ):
            (answer,) = exchange(root, request("tools/list", {"_meta": meta}))
            assert answer["error"]["code"] == -32602
        (answer,) = exchange(root, request("tools/list", {"_meta": {"progressToken": 1}}))
        assert answer["error"]["message"] == "Server not initialized"


class TestStartAndEnd:
    def start(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        full = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]} | (env or {})
        return subprocess.run(
            [COMMAND, *argv], env=full, input=INITIALIZE, capture_output=True, timeout=60, check=False
        )

    @covers("stdio.md#timeout")
    @pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "abc", "٣", " 5", "+", "1e3"])
    def test_a_timeout_that_is_no_positive_integer_is_one_line_and_exit_1(self, value: str, root: Path) -> None:
        ran = self.start("serve", "--stdio", env=environment(root, CONTEXT_TOOL_TIMEOUT_SECS=value))
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr.count(b"\n") == 1
        assert b"CONTEXT_TOOL_TIMEOUT_SECS" in ran.stderr

    @covers("seed-002#timeout", "stdio.md#timeout")
    @pytest.mark.parametrize("value", ["30", "007", "+30", "9" * 40])
    def test_a_positive_integer_is_a_timeout(self, value: str, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.list_caches"), CONTEXT_TOOL_TIMEOUT_SECS=value)
        assert answer["result"]["isError"] is False

    @covers("product.md#cache-root", "stdio.md#timeout")
    @pytest.mark.parametrize("env", [{}, {"CONTEXT_CACHE_ROOT": ""}])
    def test_no_cache_root_is_one_line_and_exit_1(self, env: dict[str, str]) -> None:
        ran = self.start("serve", "--stdio", env=env)
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr.count(b"\n") == 1
        assert b"--cache-root" in ran.stderr

    def test_a_call_may_take_30_seconds_unless_told_otherwise(self) -> None:
        assert settings_from({"CONTEXT_CACHE_ROOT": "x"}, {}).tool_timeout_s == 30
        told = {"CONTEXT_CACHE_ROOT": "x", "CONTEXT_TOOL_TIMEOUT_SECS": "1"}
        assert settings_from(told, {}).tool_timeout_s == 1

    @pytest.mark.parametrize("stdout", ["> /dev/full", ">&-"])
    def test_a_stdout_that_takes_nothing_is_an_io_error(self, stdout: str, root: Path) -> None:
        script = f"echo '{INITIALIZE.decode().strip()}' | {COMMAND} serve --stdio {stdout}"
        done = subprocess.run(
            ["bash", "-c", script], env=environment(root), capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 6
        assert b"stdout" in done.stderr

    @covers("product.md#serve", "product.md#cache-root")
    def test_the_option_goes_before_the_variable(self, root: Path, tmp_path: Path) -> None:
        env = environment(tmp_path / "nowhere")
        argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--cache-root", root]
        lines = INITIALIZE + call("context.resolve", RESOLVE)
        done = subprocess.run(argv, input=lines, env=env, capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout.splitlines()[1])["result"]["isError"] is False

    @covers("product.md#program-names")
    def test_the_server_has_a_name_of_its_own(self, root: Path) -> None:
        server = COMMAND.parent / "mcp-context-server"
        done = subprocess.run(
            [server], input=INITIALIZE, env=environment(root), capture_output=True, timeout=60, check=True
        )
        assert json.loads(done.stdout)["id"] == 0

    @covers("stdio.md#end-of-input", "stdio.md#streams")
    def test_at_the_end_of_input_every_request_is_answered_and_the_exit_is_0(self, root: Path) -> None:
        lines = [call("context.resolve", RESOLVE, request_id=number) for number in range(40)]
        assert [answer["id"] for answer in after_handshake(root, *lines)] == list(range(40))
        assert exchange(root) == []

    def test_with_stdin_closed_nothing_else_is_taken_for_it(self, root: Path) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            argv = ["bash", "-c", f"exec {COMMAND} serve --stdio <&-"]
            process = subprocess.Popen(argv, stdout=theirs.fileno(), env=environment(root))
            theirs.close()
            ours.sendall(INITIALIZE)
            assert process.wait(timeout=30) == 0
            ours.settimeout(60)
            # The server has not read what we sent.
            with contextlib.suppress(ConnectionResetError):
                assert ours.recv(1) == b""

    @covers("stdio.md#end-of-input")
    def test_no_input_at_all_is_an_end_too(self, root: Path) -> None:
        script = f"{COMMAND} serve --stdio <&-"
        done = subprocess.run(
            ["bash", "-c", script], env=environment(root), capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, b"")

    @covers("seed-000#what-this-spec-forbids", "stdio.md#streams")
    def test_what_a_library_prints_does_not_reach_the_answers(self, root: Path, tmp_path: Path) -> None:
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
        done = subprocess.run(argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == 3
        assert answers[2] == ALIVE
        for word in (b"stray", b"raw", b"shouted"):
            assert word in done.stderr

    @covers("stdio.md#streams")
    def test_stderr_has_a_line_for_a_problem_and_no_document_text(self, own_root: Path) -> None:
        root = own_root
        document = json.loads((root / "docs" / "documents" / "19835fc46fd4.json").read_text())
        document["id"] = "secret words " * 5 + "é" * 300
        (root / "docs" / "documents" / "19835fc46fd4.json").write_text(json.dumps(document))
        argv: list[str | Path] = [COMMAND, "serve", "--stdio"]
        lines = INITIALIZE + call("context.resolve", RESOLVE)
        done = subprocess.run(argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True)
        assert done.stderr.count(b"\n") == 1
        assert b"context.resolve: cache_invalid: " in done.stderr
        assert b"secret" not in done.stderr
        done.stderr.decode("utf-8")


class TestEveryPython:
    @pytest.mark.parametrize("version", list(PYTHONS)[1:])
    def test_each_gives_the_same_bytes(self, version: str, root: Path) -> None:
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
        given = []
        for command in ([str(COMMAND)], command_of(PYTHONS[version])):
            argv = [*command, "serve", "--stdio"]
            done = subprocess.run(argv, input=lines, env=environment(root), capture_output=True, timeout=60, check=True)
            given.append(done.stdout)
        assert given[0] == given[1]
        assert given[0].count(b"\n") == 12
