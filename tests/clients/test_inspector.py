"""The command line of the MCP Inspector. In `make soak` each call starts a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.contract import (
    GUIDE,
    HANDSHAKE,
    LIST_CACHES,
    MODERN,
    RESOLVE,
    About,
    Call,
    EveryClient,
    ListTools,
    Operation,
    OtherResult,
    Outcome,
    OverStdio,
    Refusal,
    Request,
    outcome,
    resolve_output,
    tool_error,
)
from tests.clients.http_contract import OverHttp
from tests.clients.node import HERE, Script, Scripts, run_node
from tests.clients.servers import Command, Endpoint, Server, stdio_server
from tests.support.machine import SOAK

INSPECTOR = str(HERE / "node_modules" / ".bin" / "mcp-inspector")
# The Inspector exits with this code for a result with `isError`.
TOOL_FAILED = 5


class InspectorRun(NamedTuple):
    code: int
    output: Any
    # These are the Inspector's own errors, without what the server logs.
    errors: list[Any]


class Inspector(NamedTuple):
    era: str
    version: str
    home: Path
    # This process runs the Inspector's code. Without it, each call starts the program.
    script: Script | None
    calls_per_connection: int = 1
    shows_error_codes: bool = False
    unauthorized: str = "auth_required"

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        assert not together
        return [self._perform(server, operation) for operation in operations]

    def run(self, server: Server, *argv: str) -> InspectorRun:
        options = ["--protocol-era", self.era, "--format", "json"]
        arguments = [*_server_arguments(server), *options, *argv]
        if self.script is None:
            process = run_node(self.home, INSPECTOR, "--cli", *arguments)
            code, out, err = process.returncode, process.stdout, process.stderr
        else:
            reply = json.loads(self.script.ask(json.dumps({"argv": arguments, "home": str(self.home)})))
            code, out, err = reply["code"], reply["stdout"], reply["stderr"]
        errors = [json.loads(line)["error"] for line in err.splitlines() if line.startswith('{"error":')]
        return InspectorRun(code, json.loads(out or "null"), errors)

    def _perform(self, server: Server, operation: Operation) -> Outcome:
        completed = self.run(server, *_operation_arguments(operation))
        if completed.output is None:
            [error] = completed.errors
            return Refusal(error["code"], error["message"])
        result = completed.output["result"]
        if isinstance(operation, About):
            result["version"] = result["protocolVersion"]
        failed = bool(result.get("isError"))
        assert completed.code == (TOOL_FAILED if failed else 0)
        assert [error["code"] for error in completed.errors] == (["tool_is_error"] if failed else [])
        return outcome(result)


def _server_arguments(server: Server) -> list[str]:
    match server:
        case Command(argv, env):
            return [*(word for name, value in env.items() for word in ("-e", f"{name}={value}")), *argv]
        case Endpoint(url, headers):
            sent = [word for name, value in headers.items() for word in ("--header", f"{name}: {value}")]
            return [url, "--transport", "http", "--stored-auth-only", *sent]


def _operation_arguments(operation: Operation) -> list[str]:
    match operation:
        case About():
            return ["--method", "initialize"]
        case ListTools():
            return ["--method", "tools/list", "--strict"]
        case Request(method):
            return ["--method", method]
        case Call(tool, arguments, timeout_ms):
            assert timeout_ms is None
            return ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)]


ERAS = {"legacy": HANDSHAKE, "modern": MODERN}
VERSIONS = {**ERAS, "auto": MODERN}


def inspector(era: str, home: Path, scripts: Scripts) -> Inspector:
    return Inspector(era, VERSIONS[era], home, None if SOAK else scripts("inspector.mjs"))


@pytest.mark.parametrize(
    "operation", [Call(RESOLVE, GUIDE), Call(RESOLVE, GUIDE | {"budget": -1})], ids=["ok", "failed"]
)
def test_the_program_and_its_code_in_our_process_give_the_same_result(
    operation: Operation, cache_root: Path, tmp_path: Path, scripts: Scripts
) -> None:
    in_process = Inspector("legacy", HANDSHAKE, tmp_path, scripts("inspector.mjs"))
    completed = in_process.run(stdio_server(cache_root), *_operation_arguments(operation))
    assert completed.output
    assert in_process._replace(script=None).run(stdio_server(cache_root), *_operation_arguments(operation)) == completed


@pytest.mark.parametrize("era", VERSIONS)
def test_the_inspector_connects_in_every_era(
    era: str, server: Server, cache_root: Path, tmp_path: Path, scripts: Scripts
) -> None:
    """With `auto` it chooses the stateless era."""
    [about, answer] = inspector(era, tmp_path, scripts)(server, About(), Call(RESOLVE, GUIDE))
    assert isinstance(about, OtherResult)
    assert about.value["protocolVersion"] == VERSIONS[era]
    assert answer == resolve_output(cache_root, GUIDE)


class TestInspector(OverStdio, EveryClient):
    @pytest.fixture(params=ERAS if SOAK else ["legacy"])
    def client(self, request: pytest.FixtureRequest, tmp_path: Path, scripts: Scripts) -> Inspector:
        """In `make test` this is one era, and over HTTP the other one."""
        return inspector(request.param, tmp_path, scripts)

    def test_the_inspectors_output_file_is_the_output_of_the_command(
        self, client: Inspector, cache_root: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "answer"
        client.run(
            stdio_server(cache_root),
            *_operation_arguments(Call(RESOLVE, GUIDE)),
            "--output",
            str(file),
            "--output-format",
            "raw",
        )
        assert file.read_bytes() == resolve_output(cache_root, GUIDE).text.encode()

    def test_the_inspector_converts_arguments_by_our_schema(self, client: Inspector, cache_root: Path) -> None:
        """`--tool-arg budget=4000` is text, and the Inspector converts it to an integer because of our schema."""
        options = ["--tool-name", RESOLVE, "--tool-arg", *(f"{name}={value}" for name, value in GUIDE.items())]
        completed = client.run(stdio_server(cache_root), "--method", "tools/call", *options)
        assert outcome(completed.output["result"]) == resolve_output(cache_root, GUIDE)

    def test_a_tool_that_is_not_listed_is_not_found(self, client: Inspector, cache_root: Path) -> None:
        """The Inspector reads the list first and does not send the call."""
        [refusal] = client(stdio_server(cache_root), Call("context.nothing", {}))
        assert refusal == Refusal("tool_not_found", "Tool 'context.nothing' not found on server.")

    def test_an_argument_that_is_not_in_the_schema_is_refused(self, client: Inspector, cache_root: Path) -> None:
        """The Inspector shows the message of a protocol error, not its code."""
        assert client(stdio_server(cache_root), Call(LIST_CACHES, {"cache": "docs"})) == [
            Refusal("error", "Invalid params")
        ]

    def test_half_a_surrogate_pair_is_an_invalid_query(self, client: Inspector, cache_root: Path) -> None:
        assert client(stdio_server(cache_root), Call(RESOLVE, GUIDE | {"query": "\ud800"})) == [
            tool_error("invalid_query")
        ]


class TestInspectorOverHttp(OverHttp, EveryClient):
    @pytest.fixture(params=ERAS if SOAK else ["modern"])
    def client(self, request: pytest.FixtureRequest, tmp_path: Path, scripts: Scripts) -> Inspector:
        return inspector(request.param, tmp_path, scripts)
