"""The MCP Inspector's command line: every call has an exit code of its own, and in `make soak` a process of its own."""

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
    Outcome,
    OverStdio,
    Refused,
    Request,
    Told,
    as_the_command_says,
    outcome,
    typed,
)
from tests.clients.folding import OverHttp
from tests.clients.node import HERE, Script, Scripts, run_node
from tests.clients.servers import Command, Endpoint, Server, serving
from tests.support.clauses import covers
from tests.support.machine import SOAK

INSPECTOR = str(HERE / "node_modules" / ".bin" / "mcp-inspector")
# The Inspector exits with this code for a result with `isError`.
TOOL_FAILED = 5


class Ran(NamedTuple):
    code: int
    printed: Any
    # These are the Inspector's own errors, without what the server logs.
    errors: list[Any]


class Inspector(NamedTuple):
    era: str
    version: str
    home: Path
    # The process that runs its code; without one, each call starts the program.
    script: Script | None
    calls_per_connection: int = 1
    tells_numbers: bool = False
    unauthorized: str = "auth_required"

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        assert not together
        return [self._perform(server, operation) for operation in operations]

    def run(self, server: Server, *argv: str) -> Ran:
        ways = ["--protocol-era", self.era, "--format", "json"]
        words = [*_named(server), *ways, *argv]
        if self.script is None:
            done = run_node(self.home, INSPECTOR, "--cli", *words)
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            told = json.loads(self.script.ask(json.dumps({"argv": words, "home": str(self.home)})))
            code, out, err = told["code"], told["stdout"], told["stderr"]
        errors = [json.loads(line)["error"] for line in err.splitlines() if line.startswith('{"error":')]
        return Ran(code, json.loads(out or "null"), errors)

    def _perform(self, server: Server, operation: Operation) -> Outcome:
        ran = self.run(server, *_written(operation))
        if ran.printed is None:
            [error] = ran.errors
            return Refused(error["code"], error["message"])
        result = ran.printed["result"]
        if isinstance(operation, About):
            result["version"] = result["protocolVersion"]
        failed = bool(result.get("isError"))
        assert ran.code == (TOOL_FAILED if failed else 0)
        assert [error["code"] for error in ran.errors] == (["tool_is_error"] if failed else [])
        return outcome(result)


def _named(server: Server) -> list[str]:
    match server:
        case Command(argv, env):
            return [*(word for name, value in env.items() for word in ("-e", f"{name}={value}")), *argv]
        case Endpoint(url, headers):
            sent = [word for name, value in headers.items() for word in ("--header", f"{name}: {value}")]
            return [url, "--transport", "http", "--stored-auth-only", *sent]


def _written(operation: Operation) -> list[str]:
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


@covers("stdio.md#clients")
@pytest.mark.parametrize(
    "operation", [Call(RESOLVE, GUIDE), Call(RESOLVE, GUIDE | {"budget": -1})], ids=["ok", "failed"]
)
def test_the_program_does_what_its_code_does_here(
    operation: Operation, shelf: Path, tmp_path: Path, scripts: Scripts
) -> None:
    code = Inspector("legacy", HANDSHAKE, tmp_path, scripts("inspector.mjs"))
    ran = code.run(serving(shelf), *_written(operation))
    assert ran.printed
    assert code._replace(script=None).run(serving(shelf), *_written(operation)) == ran


@covers("stdio.md#clients")
@pytest.mark.parametrize("era", VERSIONS)
def test_in_every_era_it_reads_who_answers_and_what(
    era: str, server: Server, shelf: Path, tmp_path: Path, scripts: Scripts
) -> None:
    """Left to choose, it takes the modern one."""
    [told, answer] = inspector(era, tmp_path, scripts)(server, About(), Call(RESOLVE, GUIDE))
    assert isinstance(told, Told)
    assert told.value["protocolVersion"] == VERSIONS[era]
    assert answer == as_the_command_says(shelf, GUIDE)


class TestInspector(OverStdio, EveryClient):
    @pytest.fixture(params=ERAS if SOAK else ["legacy"])
    def client(self, request: pytest.FixtureRequest, tmp_path: Path, scripts: Scripts) -> Inspector:
        """One era in the sample, the other one over HTTP."""
        return inspector(request.param, tmp_path, scripts)

    @covers("seed-000#determinism-contract", "seed-000#invariants", "stdio.md#clients")
    def test_what_it_writes_to_a_file_is_what_the_command_prints(
        self, client: Inspector, shelf: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "answer"
        client.run(serving(shelf), *_written(Call(RESOLVE, GUIDE)), "--output", str(file), "--output-format", "raw")
        assert file.read_bytes() == as_the_command_says(shelf, GUIDE).text.encode()

    @covers("stdio.md#clients")
    def test_it_turns_what_people_type_into_what_the_schema_asks_for(self, client: Inspector, shelf: Path) -> None:
        """`--tool-arg budget=4000` is text; the Inspector makes an integer of it because of our schema."""
        typed_in = ["--tool-name", RESOLVE, "--tool-arg", *(f"{name}={value}" for name, value in GUIDE.items())]
        ran = client.run(serving(shelf), "--method", "tools/call", *typed_in)
        assert outcome(ran.printed["result"]) == as_the_command_says(shelf, GUIDE)

    def test_a_tool_that_is_not_listed_is_not_found(self, client: Inspector, shelf: Path) -> None:
        """The Inspector reads the list first and does not send the call."""
        [refused] = client(serving(shelf), Call("context.nothing", {}))
        assert refused == Refused("tool_not_found", "Tool 'context.nothing' not found on server.")

    def test_an_argument_the_schema_does_not_name_is_refused(self, client: Inspector, shelf: Path) -> None:
        """The Inspector shows the message of a protocol error, not its code."""
        assert client(serving(shelf), Call(LIST_CACHES, {"cache": "docs"})) == [Refused("error", "Invalid params")]

    @covers("stdio.md#tool-calls")
    def test_half_a_surrogate_pair_is_an_invalid_query(self, client: Inspector, shelf: Path) -> None:
        assert client(serving(shelf), Call(RESOLVE, GUIDE | {"query": "\ud800"})) == [typed("invalid_query")]


class TestInspectorOverHttp(OverHttp, EveryClient):
    @pytest.fixture(params=ERAS if SOAK else ["modern"])
    def client(self, request: pytest.FixtureRequest, tmp_path: Path, scripts: Scripts) -> Inspector:
        return inspector(request.param, tmp_path, scripts)
