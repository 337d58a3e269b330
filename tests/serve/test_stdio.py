"""The stdio server, row by row of its table, in raw bytes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contextfold import __version__
from contextfold.resolve.root import CacheRoot
from contextfold.serve.protocol import Session
from contextfold.serve.tools import RESOLVE_TOOLS
from contextfold.serve.tools import call as run_tool
from contextfold.settings import settings_from
from machine import COMMAND, Call, as_nobody, command_of, context, interpreters, write_files
from serve.wire import (
    INITIALIZE,
    MODERN_META,
    Server,
    after_handshake,
    call,
    environment,
    error_code_of,
    exchange,
    modern,
    request,
    text_of,
)

LIMIT = 1_048_576
PYTHONS = interpreters()
PARSE_ERROR = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
PING = request("ping", request_id="alive")
ALIVE = {"jsonrpc": "2.0", "id": "alive", "result": {}}
RESOLVE = {"cache": "docs", "query": "guide", "budget": 4000}
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


def invalid_request(request_id: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32600, "message": "Invalid Request"}}


def protocol_error(code: int, message: str, request_id: object = 1) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


class TestLines:
    @pytest.mark.parametrize(
        "line",
        [
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
        ],
        ids=lambda line: repr(line[:30]),
    )
    def test_what_is_no_json_is_a_parse_error_and_the_next_line_is_served(self, line: bytes, root: Path) -> None:
        assert after_handshake(root, line + b"\n", PING) == [PARSE_ERROR, ALIVE]

    def test_the_limit_is_1_mib_with_the_newline(self, root: Path) -> None:
        head, tail = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"', b'"}}\n'
        fits = head + b"x" * (LIMIT - len(head) - len(tail)) + tail
        assert len(fits) == LIMIT
        assert after_handshake(root, fits, PING) == [{"jsonrpc": "2.0", "id": 1, "result": {}}, ALIVE]
        assert after_handshake(root, fits.replace(b"xx", b"xxx", 1), PING) == [PARSE_ERROR, ALIVE]

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

    def test_a_last_line_without_newline_is_answered_too(self, root: Path) -> None:
        assert after_handshake(root, PING.rstrip(b"\n")) == [ALIVE]
        assert after_handshake(root, b"x" * LIMIT) == [PARSE_ERROR]
        assert after_handshake(root, b"{") == [PARSE_ERROR]

    def test_empty_lines_are_ignored(self, root: Path) -> None:
        assert after_handshake(root, b"\n\r\n\n", PING, b"\r\n") == [ALIVE]

    def test_lines_may_end_as_on_windows(self, root: Path) -> None:
        assert after_handshake(root, PING.replace(b"\n", b"\r\n")) == [ALIVE]

    def test_a_line_may_come_in_pieces_and_many_at_once(self, root: Path) -> None:
        with Server(root) as server:
            for at in range(len(INITIALIZE)):
                server.input.write(INITIALIZE[at : at + 1])
            assert server.answer()["id"] == 0
            server.input.write(PING * 500)
            assert [server.answer() for _ in range(500)] == [ALIVE] * 500


class TestRequests:
    @pytest.mark.parametrize(
        ("message", "request_id"),
        [
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
        ],
    )
    def test_what_is_no_request_is_told_so(self, message: object, request_id: object, root: Path) -> None:
        line = json.dumps(message).encode() + b"\n"
        assert after_handshake(root, line, PING) == [invalid_request(request_id), ALIVE]

    def test_an_id_comes_back_as_it_was(self, root: Path) -> None:
        for request_id in (0, -5, 2**70, 10**4299, -(10**4299), "", "é", "\ud800", "a\nb", "0"):
            (answer,) = after_handshake(root, request("ping", request_id=request_id))
            assert answer == {"jsonrpc": "2.0", "id": request_id, "result": {}}

    def test_an_id_of_endless_digits_is_no_id(self, root: Path) -> None:
        line = b'{"jsonrpc":"2.0","id":' + b"9" * 500_000 + b',"method":"ping"}\n'
        assert after_handshake(root, line, PING) == [invalid_request(None), ALIVE]

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

    def test_an_unknown_method_is_named(self, root: Path) -> None:
        for method in ("nonsense", "resources/list", "server/discover", "TOOLS/LIST", ""):
            assert after_handshake(root, request(method)) == [protocol_error(-32601, f"Method not found: {method}")]

    def test_params_may_be_null(self, root: Path) -> None:
        line = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}\n'
        assert after_handshake(root, line) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]

    def test_a_bug_of_ours_costs_one_answer(self) -> None:
        session = Session(RESOLVE_TOOLS)
        session._initialize = None  # type: ignore[method-assign, assignment]
        answer = session.receive(INITIALIZE)
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

    @pytest.mark.parametrize("unit", [b'\\"', b'"', b"\\", b'\\"[', b'"{'])
    def test_no_line_takes_long_to_be_refused(self, unit: bytes, root: Path) -> None:
        line = b"[" * 128 + b'"' + unit * (900_000 // len(unit)) + b"\n"
        assert after_handshake(root, line, PING) == [PARSE_ERROR, ALIVE]

    def test_brackets_in_a_text_are_no_nesting(self, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "query": '[{"\\' * 500}))
        assert answer["result"]["isError"] is False

    @pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call", "initialize"])
    @pytest.mark.parametrize("params", [[], 5, "x", True])
    def test_params_that_are_no_object_are_invalid(self, method: str, params: object, root: Path) -> None:
        assert after_handshake(root, request(method, params)) == [protocol_error(-32602, "Invalid params")]


class TestHandshake:
    @pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call", "nonsense", "server/discover"])
    def test_before_it_every_request_is_refused(self, method: str, root: Path) -> None:
        refused = protocol_error(-32600, "Server not initialized")
        answers = exchange(root, request(method), INITIALIZE, PING)
        assert (answers[0], answers[2]) == (refused, ALIVE)

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
        assert result["capabilities"] == {"tools": {}}
        assert result["serverInfo"] == {"name": "contextfold", "version": __version__}
        for tool in ("context.resolve", "context.list_caches", "context.inspect_cache"):
            assert f"{tool}: " in result["instructions"]

    def test_its_params_may_be_missing_and_the_acknowledgement_is_not_waited_for(self, root: Path) -> None:
        answers = exchange(root, b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n', PING)
        assert answers[0]["result"]["protocolVersion"] == VERSIONS[-1]
        assert answers[1] == ALIVE


class TestModernEra:
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
        assert discovered["result"]["capabilities"] == {"tools": {}}
        assert listed["id"] == "b"
        assert text_of(called) == '{"caches":[{"path":"docs","has_manifest":true}]}'

    def test_both_eras_give_the_same_tools_and_the_same_text(self, root: Path) -> None:
        old = after_handshake(root, request("tools/list"), call("context.resolve", RESOLVE))
        new = exchange(
            root, modern("tools/list"), modern("tools/call", {"name": "context.resolve", "arguments": RESOLVE})
        )
        assert old[0]["result"]["tools"] == new[0]["result"]["tools"]
        assert text_of(old[1]) == text_of(new[1])

    def test_an_envelope_is_served_after_a_handshake_too_and_does_not_replace_one(self, root: Path) -> None:
        assert "resultType" in after_handshake(root, modern("tools/list"))[0]["result"]
        answers = exchange(root, modern("tools/list"), request("tools/list"))
        assert answers[1] == protocol_error(-32600, "Server not initialized")

    def test_there_is_no_ping_and_no_initialize_in_it(self, root: Path) -> None:
        assert exchange(root, modern("ping")) == [protocol_error(-32601, "Method not found: ping")]
        assert "protocolVersion" in exchange(root, modern("initialize"))[0]["result"]

    @pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25", ""])
    def test_another_version_is_refused_with_those_we_speak(self, version: str, root: Path) -> None:
        meta = {**MODERN_META, "io.modelcontextprotocol/protocolVersion": version}
        (answer,) = exchange(root, request("tools/list", {"_meta": meta}))
        data = {"supported": ["2026-07-28"], "requested": version}
        assert answer["error"] == {"code": -32022, "message": "Unsupported protocol version", "data": data}

    def test_half_an_envelope_is_invalid(self, root: Path) -> None:
        for meta in (
            {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
            {**MODERN_META, "io.modelcontextprotocol/protocolVersion": 5},
        ):
            (answer,) = exchange(root, request("tools/list", {"_meta": meta}))
            assert answer["error"]["code"] == -32602
        (answer,) = exchange(root, request("tools/list", {"_meta": {"progressToken": 1}}))
        assert answer["error"]["message"] == "Server not initialized"


class TestTools:
    def test_the_list_is_the_seeds_in_fixed_order(self, root: Path) -> None:
        (answer,) = after_handshake(root, request("tools/list"))
        tools = answer["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["context.resolve", "context.list_caches", "context.inspect_cache"]
        cache = {"type": "string", "description": "Path or identifier of a built context cache"}
        assert tools[0]["inputSchema"] == {
            "type": "object",
            "properties": {
                "cache": cache,
                "query": {"type": "string", "description": "Natural-language query"},
                "budget": {"type": "integer", "minimum": 0, "description": "Maximum token budget"},
            },
            "required": ["cache", "query", "budget"],
            "additionalProperties": False,
        }
        assert tools[1]["inputSchema"] == {"type": "object", "properties": {}, "additionalProperties": False}
        assert tools[2]["inputSchema"]["properties"] == {"cache": cache}
        assert [tool["description"] for tool in tools] == [
            "Resolve a natural-language query against a pre-built context cache and return a deterministic, "
            "explainable set of documents within a token budget.",
            "List available context caches.",
            "Inspect cache state and metadata.",
        ]

    @pytest.mark.parametrize("query", ["guide", "", "é Σ 😀", "\u0000", 'a"b\\c\nd', "deployment security"])
    @pytest.mark.parametrize("budget", [0, 7, 4000, 2**63 - 1])
    def test_resolve_answers_the_commands_stdout(
        self, query: str, budget: int, root: Path, call_in_process: Call
    ) -> None:
        (answer,) = after_handshake(root, call("context.resolve", {"cache": "docs", "query": query, "budget": budget}))
        if "\0" in query:  # no command line can carry it
            assert json.loads(text_of(answer))["selection"]["query"] == query
        else:
            ran = call_in_process("resolve", "--cache", root / "docs", "--query", query.encode(), "--budget", budget)
            assert text_of(answer).encode() == ran.out
        assert answer["result"]["isError"] is False

    @pytest.mark.parametrize("name", ["nope", "context_resolve", "", "context.resolve "])
    def test_an_unknown_tool_is_named(self, name: str, root: Path) -> None:
        assert after_handshake(root, call(name, {})) == [protocol_error(-32602, f"Unknown tool: {name}")]

    @pytest.mark.parametrize(
        "params",
        [
            None,
            {},
            {"name": 5},
            {"name": None},
            {"name": "context.resolve", "arguments": []},
            {"name": "context.resolve", "arguments": "x"},
            {"name": "context.resolve", "arguments": None},
            {"name": "context.resolve", "arguments": {**RESOLVE, "extra": 1}},
            {"name": "context.list_caches", "arguments": {"cache": "docs"}},
            {"name": "context.inspect_cache", "arguments": {"cache": "docs", "query": "q"}},
        ],
    )
    def test_params_of_another_shape_are_invalid(self, params: object, root: Path) -> None:
        assert after_handshake(root, request("tools/call", params)) == [protocol_error(-32602, "Invalid params")]

    @pytest.mark.parametrize(
        ("wrong", "code"),
        [
            ({"cache": None}, "cache_missing"),
            ({"cache": 5}, "cache_missing"),
            ({"cache": ""}, "cache_missing"),
            ({"cache": "."}, "cache_missing"),
            ({"cache": "nowhere"}, "cache_missing"),
            ({"cache": "\ud800"}, "cache_missing"),
            ({"cache": "n" * 300}, "cache_missing"),
            ({"cache": "a/" * 400_000}, "cache_missing"),
            ({"query": None}, "invalid_query"),
            ({"query": 5}, "invalid_query"),
            ({"query": ["q"]}, "invalid_query"),
            ({"query": "\ud800"}, "invalid_query"),
            ({"query": "ok \udfff"}, "invalid_query"),
            ({"budget": None}, "invalid_budget"),
            ({"budget": "5"}, "invalid_budget"),
            ({"budget": True}, "invalid_budget"),
            ({"budget": 5.0}, "invalid_budget"),
            ({"budget": -1}, "invalid_budget"),
            ({"budget": 2**63}, "invalid_budget"),
            ({"budget": 10**4000}, "invalid_budget"),
            ({"cache": 5, "query": 5, "budget": -1}, "cache_missing"),
            ({"query": 5, "budget": -1}, "invalid_query"),
            ({"cache": "nowhere", "query": 5}, "invalid_query"),
            ({"cache": "nowhere", "budget": -1}, "invalid_budget"),
        ],
    )
    def test_bad_arguments_are_typed_by_what_is_wrong(self, wrong: dict[str, object], code: str, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, **wrong}))
        assert error_code_of(answer) == code

    @pytest.mark.parametrize(
        ("missing", "code"), [("cache", "cache_missing"), ("query", "invalid_query"), ("budget", "invalid_budget")]
    )
    def test_a_missing_argument_is_typed_likewise(self, missing: str, code: str, root: Path) -> None:
        arguments = {name: value for name, value in RESOLVE.items() if name != missing}
        assert error_code_of(after_handshake(root, call("context.resolve", arguments))[0]) == code

    def test_a_budget_of_endless_digits_is_invalid(self, root: Path) -> None:
        line = call("context.resolve", RESOLVE).replace(b"4000", b"9" * 900_000)
        assert error_code_of(after_handshake(root, line)[0]) == "invalid_budget"

    def test_messages_are_the_canonical_ones_and_tell_no_paths(self, root: Path) -> None:
        (root / "docs" / "index.json").unlink()
        (answer,) = after_handshake(root, call("context.resolve", RESOLVE))
        assert text_of(answer) == '{"error":{"code":"cache_invalid","message":"Cache exists but is invalid"}}\n'

    def test_nothing_is_built_or_mended_for_a_caller(self, root: Path) -> None:
        (root / "docs" / "index.json").unlink()
        before = sorted(str(path) for path in root.rglob("*"))
        after_handshake(root, call("context.resolve", RESOLVE), call("context.resolve", {**RESOLVE, "cache": "new"}))
        assert sorted(str(path) for path in root.rglob("*")) == before


class TestNames:
    def test_bad_arguments_are_refused_before_the_disk_is_touched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def touched(*_: object, **__: object) -> None:
            raise AssertionError("the disk was touched")

        for name in ("open", "stat", "lstat", "scandir", "listdir", "readlink"):
            monkeypatch.setattr(os, name, touched)
        monkeypatch.setattr(os.path, "realpath", touched)
        resolve, _, inspect = RESOLVE_TOOLS
        for wrong in ({"cache": "../x"}, {"cache": "/x"}, {"cache": "a\0"}, {"query": 5}, {"budget": -1}):
            assert '"internal_error"' not in run_tool(resolve, CacheRoot(b"/x"), {**RESOLVE, **wrong}).text
        assert '"cache_missing"' in run_tool(inspect, CacheRoot(b"/x"), {"cache": "../x"}).text
        assert '"internal_error"' in run_tool(resolve, CacheRoot(b"/x"), RESOLVE).text  # the trap works

    @pytest.mark.parametrize(
        "name",
        [
            "..",
            "../docs",
            "docs/..",
            "docs/../docs",
            "/etc",
            "/{root}/docs",
            "\\docs",
            "a..b",
            "docs\0",
            "\0",
            "link-out",
            "link-out/docs",
            "file",
        ],
    )
    @pytest.mark.parametrize("tool", ["context.resolve", "context.inspect_cache"])
    def test_no_name_leads_out_of_the_root(self, name: str, tool: str, root: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        os.rename(root / "docs", tmp_path / "elsewhere" / "docs")
        (root / "link-out").symlink_to(tmp_path / "elsewhere")
        (root / "docs").symlink_to(tmp_path / "elsewhere" / "docs")
        (root / "file").write_text("x")
        arguments = (
            {**RESOLVE, "cache": name.format(root=root)} if "resolve" in tool else {"cache": name.format(root=root)}
        )
        assert error_code_of(after_handshake(root, call(tool, arguments))[0]) == "cache_missing"
        assert error_code_of(after_handshake(root, call(tool, {**arguments, "cache": "docs"}))[0]) == "cache_missing"

    def test_a_link_that_stays_inside_and_a_folder_below_are_caches_too(self, root: Path) -> None:
        (root / "group").mkdir()
        os.rename(root / "docs", root / "group" / "docs")
        (root / "current").symlink_to(root / "group" / "docs")
        for name in ("group/docs", "current", "./current", "group//docs/"):
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": name}))
            assert answer["result"]["isError"] is False

    def test_the_root_itself_may_be_behind_a_link(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(root)
        (answer,) = after_handshake(tmp_path / "link", call("context.resolve", RESOLVE))
        assert answer["result"]["isError"] is False


class TestListAndInspect:
    def test_the_list_holds_each_folder_by_name_in_byte_order(self, root: Path) -> None:
        for name in ("é", "Z", "a", ".hidden", "a b", "😀"):
            (root / name).mkdir()
        (root / "file").write_text("x")
        (root / "link").symlink_to(root / "docs")
        (root / "a" / "manifest.json").symlink_to(root / "docs" / "manifest.json")
        (root / "Z" / "manifest.json").mkdir()
        (root / "broken").mkdir()
        (root / "broken" / "manifest.json").write_text("nope")  # nobody reads it to list it
        for unnameable in (b"bad\xff", b"a..b", b"\\x"):
            os.mkdir(os.fsencode(root) + b"/" + unnameable)
        (answer,) = after_handshake(root, call("context.list_caches"))
        names = [".hidden", "Z", "a", "a b", "broken", "docs", "é", "😀"]
        expected = {"caches": [{"path": name, "has_manifest": name in ("broken", "docs")} for name in names]}
        assert text_of(answer) == json.dumps(expected, separators=(",", ":"), ensure_ascii=False)

    def test_every_listed_name_can_be_asked_for(self, root: Path) -> None:
        for name in ("é", "a b", ".hidden", "~", "$HOME", "*"):
            os.rename(root / os.listdir(root)[0], root / name)
            (listed,) = json.loads(text_of(after_handshake(root, call("context.list_caches"))[0]))["caches"]
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": listed["path"]}))
            assert answer["result"]["isError"] is False

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_what_may_not_be_read_is_an_io_error(self, root: Path, tmp_path: Path) -> None:
        questions = {
            "docs/manifest.json": call("context.inspect_cache", {"cache": "docs"}),
            "docs/index.json": call("context.resolve", RESOLVE),
            ".": call("context.list_caches"),
        }
        for file, asked in questions.items():
            (root / file).chmod(0)
            argv = ("serve", "--stdio", "--cache-root", str(root))
            ran = as_nobody(tmp_path, *argv, text_input=(INITIALIZE + asked).decode())
            assert error_code_of(json.loads(ran.stdout.splitlines()[1])) == "io_error"
            (root / file).chmod(0o755)

    def test_a_build_in_progress_is_no_cache_yet(self, root: Path) -> None:
        for suffix in (".contextfold-building", ".contextfold-replaced"):
            (root / f".docs{suffix}").mkdir(exist_ok=True)
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": f".docs{suffix}"}))
            assert error_code_of(answer) == "cache_missing"
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": f".docs{suffix}/."}))
            assert error_code_of(answer) == "cache_missing"
        (answer,) = after_handshake(root, call("context.list_caches"))
        assert [cache["path"] for cache in json.loads(text_of(answer))["caches"]] == ["docs"]

    def test_a_root_that_is_not_there_is_an_io_error_of_the_list_alone(self, tmp_path: Path) -> None:
        listed, resolved = after_handshake(
            tmp_path / "nowhere", call("context.list_caches"), call("context.resolve", RESOLVE)
        )
        assert (error_code_of(listed), error_code_of(resolved)) == ("io_error", "cache_missing")

    def test_inspect_tells_version_count_root_bytes_and_validity(self, root: Path, call_in_process: Call) -> None:
        (root / "docs" / "link").symlink_to("manifest.json")
        (answer,) = after_handshake(root, call("context.inspect_cache", {"cache": "docs"}))
        inspected = json.loads(call_in_process("inspect", "--cache", root / "docs").out)
        size = sum((root / "docs" / name).stat().st_size for name in ("manifest.json", "index.json"))
        expected = {
            "cache_version": inspected["cache_version"],
            "document_count": 3,
            "total_bytes": size,
            "valid": True,
        }
        assert text_of(answer) == json.dumps(expected, separators=(",", ":"))

    @pytest.mark.parametrize("manifest", [None, "", "nope", "{}", "[]", '{"cache_version":"x"}'])
    def test_inspect_of_an_unreadable_manifest_says_invalid(self, manifest: str | None, root: Path) -> None:
        (root / "docs" / "manifest.json").unlink()
        if manifest is not None:
            (root / "docs" / "manifest.json").write_text(manifest)
        (answer,) = after_handshake(root, call("context.inspect_cache", {"cache": "docs"}))
        assert answer["result"]["isError"] is False
        assert text_of(answer) == '{"cache_version":"","document_count":0,"total_bytes":0,"valid":false}'

    def test_inspect_of_a_damaged_cache_says_invalid(self, root: Path) -> None:
        (root / "docs" / "documents" / "19835fc46fd4.json").unlink()
        (answer,) = after_handshake(root, call("context.inspect_cache", {"cache": "docs"}))
        inspected = json.loads(text_of(answer))
        assert (inspected["valid"], inspected["document_count"]) == (False, 3)

    @pytest.mark.parametrize("wrong", [{}, {"cache": 5}, {"cache": "nowhere"}, {"cache": ".."}])
    def test_inspect_of_no_cache_is_missing(self, wrong: dict[str, object], root: Path) -> None:
        assert error_code_of(after_handshake(root, call("context.inspect_cache", wrong))[0]) == "cache_missing"


class TestStartAndEnd:
    def start(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        full = {"PATH": os.environ["PATH"]} | (env or {})
        return subprocess.run(
            [COMMAND, *argv], env=full, input=INITIALIZE, capture_output=True, timeout=60, check=False
        )

    @pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "abc", "٣", " 5", "+", "1e3"])
    def test_a_timeout_that_is_no_positive_integer_is_one_line_and_exit_1(self, value: str, root: Path) -> None:
        ran = self.start("serve", "--stdio", env=environment(root, CONTEXT_TOOL_TIMEOUT_SECS=value))
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr.count(b"\n") == 1
        assert b"CONTEXT_TOOL_TIMEOUT_SECS" in ran.stderr

    @pytest.mark.parametrize("value", ["1", "007", "+30", "9" * 40])
    def test_a_positive_integer_is_a_timeout(self, value: str, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.list_caches"), CONTEXT_TOOL_TIMEOUT_SECS=value)
        assert answer["result"]["isError"] is False

    @pytest.mark.parametrize("env", [{}, {"CONTEXT_CACHE_ROOT": ""}])
    def test_no_cache_root_is_one_line_and_exit_1(self, env: dict[str, str]) -> None:
        ran = self.start("serve", "--stdio", env=env)
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr.count(b"\n") == 1
        assert b"--cache-root" in ran.stderr

    def test_a_call_may_take_30_seconds_unless_told_otherwise(self) -> None:
        assert settings_from({"CONTEXT_CACHE_ROOT": "x"}, None).tool_timeout_s == 30

    @pytest.mark.parametrize("stdout", ["> /dev/full", ">&-"])
    def test_a_stdout_that_takes_nothing_is_an_io_error(self, stdout: str, root: Path) -> None:
        script = f"echo '{INITIALIZE.decode().strip()}' | {COMMAND} serve --stdio {stdout}"
        done = subprocess.run(
            ["bash", "-c", script], env=environment(root), capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 6
        assert b"stdout" in done.stderr

    def test_the_option_goes_before_the_variable(self, root: Path, tmp_path: Path) -> None:
        env = environment(tmp_path / "nowhere")
        argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--cache-root", root]
        lines = INITIALIZE + call("context.resolve", RESOLVE)
        done = subprocess.run(argv, input=lines, env=env, capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout.splitlines()[1])["result"]["isError"] is False

    def test_the_server_has_a_name_of_its_own(self, root: Path) -> None:
        server = COMMAND.parent / "mcp-context-server"
        done = subprocess.run(
            [server], input=INITIALIZE, env=environment(root), capture_output=True, timeout=60, check=True
        )
        assert json.loads(done.stdout)["id"] == 0

    def test_without_a_way_to_serve_it_says_so(self, root: Path) -> None:
        ran = context("serve", "--cache-root", root)
        assert ran.code == 1
        assert "--stdio" in ran.err

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
            ours.settimeout(5)
            with contextlib.suppress(ConnectionResetError):  # what we sent was never read
                assert ours.recv(1) == b""

    def test_no_input_at_all_is_an_end_too(self, root: Path) -> None:
        script = f"{COMMAND} serve --stdio <&-"
        done = subprocess.run(
            ["bash", "-c", script], env=environment(root), capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, b"")

    def test_what_a_library_prints_does_not_reach_the_answers(self, root: Path, tmp_path: Path) -> None:
        noise = "import os, sys\nprint('stray', flush=True)\nos.write(1, b'raw')\nos.system('echo shouted')\n"
        program = f"""
from contextfold.serve import tools
real = tools._list_caches
def noisy(root, arguments):
    exec({noise!r})
    return real(root, arguments)
first, listing, last = tools.RESOLVE_TOOLS
tools.RESOLVE_TOOLS = (first, listing._replace(handler=noisy), last)
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

    def test_stderr_has_a_line_for_a_problem_and_no_document_text(self, root: Path) -> None:
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


class TestNeverStale:
    def test_a_change_is_noticed_before_the_next_answer(self, root: Path, sources: Path, call_in_process: Call) -> None:
        def fresh(arguments: dict[str, object]) -> Any:
            return after_handshake(root, call("context.resolve", arguments))[0]

        with Server(root) as server:
            server.ask(INITIALIZE)
            question = call("context.resolve", RESOLVE)
            assert server.ask(question) == fresh(RESOLVE)
            document = root / "docs" / "documents" / "e3b0c44298fc.json"
            before = document.read_bytes()
            document.write_bytes(before.replace(b'"content":""', b'"content":"x"'))
            assert server.ask(question) == fresh(RESOLVE)
            assert error_code_of(server.ask(question)) == "cache_invalid"
            document.write_bytes(before)
            assert server.ask(question) == fresh(RESOLVE)
            write_files(sources, {"new.md": "guide guide"})
            assert call_in_process("build", "--sources", sources, "--cache", root / "docs", "--force").code == 0
            answer = server.ask(question)
            assert answer == fresh(RESOLVE)
            assert json.loads(text_of(answer))["documents"][0]["id"] == "new.md"
            subprocess.run(["rm", "-r", root / "docs"], check=True)
            assert error_code_of(server.ask(question)) == "cache_missing"


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
