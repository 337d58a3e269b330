"""The stdio server with slow, silent or hostile clients and stuck workers: time and memory are bounded."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.serve.stdio_client import (
    ALIVE,
    ASK,
    INITIALIZE,
    PING,
    RESOLVE,
    Server,
    call,
    environment,
    error_code_of,
    is_running,
    resident_mb,
    text_of,
)
from tests.support.machine import COMMAND, run_command, write_files
from tests.support.waiting import until

# Calls that are not stuck must be faster than this, however busy the machine is.
TIMEOUT_S = "5"


class TestTimeouts:
    @pytest.mark.parametrize(("tool", "arguments"), [("context.resolve", RESOLVE), ("context.ask", ASK)])
    def test_a_stuck_call_is_an_internal_error_and_the_next_is_answered(
        self, tool: str, arguments: dict[str, object], root: Path
    ) -> None:
        with Server(root, CONTEXT_TOOL_TIMEOUT_SECS=TIMEOUT_S) as server:
            server.ask(INITIALIZE)
            assert server.ask(call(tool, arguments))["result"]["isError"] is False
            (stuck,) = server.workers()
            server.freeze_worker()
            answer = server.ask(call(tool, arguments))
            assert text_of(answer) == '{"error":{"code":"internal_error","message":"Internal error"}}\n'
            assert server.ask(PING) == ALIVE
            assert server.ask(call(tool, arguments))["result"]["isError"] is False
            # The kernel needs some time to end a killed process.
            until(lambda: not is_running(stuck))
            assert len(server.workers()) == 1

    def test_a_call_that_takes_too_long_is_killed(self, root: Path, tmp_path: Path) -> None:
        """Reading and counting this document takes seconds, because each sigma is checked for being a final one."""
        write_files(tmp_path / "big", {"big.md": "A É Σ " * 600_000})
        assert run_command("build", "--sources", tmp_path / "big", "--cache", root / "big").code == 0
        subprocess.run(["rm", "-r", root / "big" / "pack"], check=True)
        slow = call("context.resolve", {"cache": "big", "query": "word1", "budget": 1})
        with Server(root, CONTEXT_TOOL_TIMEOUT_SECS="1") as server:
            server.ask(INITIALIZE)
            for _ in range(2):
                assert error_code_of(server.ask(slow)) == "internal_error"
                # On a busy machine this call may take longer than its timeout, too.
                until(lambda: server.ask(call("context.resolve", RESOLVE))["result"]["isError"] is False)
                # The kernel needs some time to free the memory of a killed process.
                until(lambda: len(server.workers()) <= 1)

    def test_at_most_one_call_fails_when_a_worker_dies(self, root: Path) -> None:
        with Server(root) as server:
            server.ask(INITIALIZE)
            first = server.ask(call("context.resolve", RESOLVE))
            for signal_number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
                for worker in server.workers():
                    os.kill(worker, signal_number)
                answers = [server.ask(call("context.resolve", RESOLVE)) for _ in range(3)]
                assert answers[1:] == [first, first]
                assert answers[0] == first or error_code_of(answers[0]) == "internal_error"

    def test_a_worker_that_dies_during_a_call_is_an_internal_error(self, root: Path) -> None:
        with Server(root) as server:
            server.ask(INITIALIZE)
            server.ask(call("context.list_caches"))
            server.freeze_worker()
            server.input.write(call("context.resolve", RESOLVE))
            until(server.has_called)
            for worker in server.workers():
                os.kill(worker, signal.SIGKILL)
            assert error_code_of(server.answer()) == "internal_error"
            assert server.ask(call("context.resolve", RESOLVE))["result"]["isError"] is False

    def test_a_request_larger_than_a_pipe_times_out_if_the_worker_is_stuck(self, root: Path) -> None:
        with Server(root, CONTEXT_TOOL_TIMEOUT_SECS=TIMEOUT_S) as server:
            server.ask(INITIALIZE)
            server.ask(call("context.list_caches"))
            server.freeze_worker()
            assert (
                error_code_of(server.ask(call("context.resolve", {**RESOLVE, "query": "q" * 900_000})))
                == "internal_error"
            )
            assert server.ask(PING) == ALIVE

    @pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_no_worker_outlives_its_server(self, signal_number: signal.Signals, root: Path) -> None:
        with Server(root, CONTEXT_TOOL_TIMEOUT_SECS=TIMEOUT_S) as server:
            server.ask(INITIALIZE)
            server.ask(call("context.list_caches"))
            (worker,) = server.workers()
            server.process.send_signal(signal_number)
            server.process.wait(timeout=30)
            until(lambda: not is_running(worker))


class TestClients:
    def test_a_client_that_stops_reading_costs_bounded_memory(self, root: Path, tmp_path: Path) -> None:
        write_files(tmp_path / "big", {"big.md": "word " * 100_000})
        assert run_command("build", "--sources", tmp_path / "big", "--cache", root / "big").code == 0
        # The longest line that a pipe takes as a whole, so that few fit into the pipe.
        question = call("context.resolve", {"cache": "big", "query": "word" + " " * 3900, "budget": 10**6})
        assert len(question) < select.PIPE_BUF
        with Server(root) as server:
            server.ask(INITIALIZE)
            os.set_blocking(server.input.fileno(), False)
            sent, refusals = 0, 0
            # The loop ends when the server accepts no more input.
            while refusals < 20:
                written = server.input.write(question)
                if written is None:
                    refusals += 1
                    select.select([], [], [], 0.05)
                else:
                    assert written == len(question)
                    sent += 1
                    refusals = 0
            assert resident_mb(server.process.pid) < 40
            for _ in range(sent):
                assert len(text_of(server.answer())) > 500_000
            os.set_blocking(server.input.fileno(), True)
            assert server.ask(PING) == ALIVE

    def test_a_client_that_closes_its_pipe_ends_the_server_without_an_error(self, root: Path) -> None:
        with Server(root) as server:
            server.ask(INITIALIZE)
            server.ask(call("context.list_caches"))
            workers = server.workers()
            server.output.close()
            server.input.write(PING * 3)
            assert server.process.wait(timeout=30) == 0
            assert server.process.stderr
            assert server.process.stderr.read() == b""
            until(lambda: not any(is_running(worker) for worker in workers))

    def test_a_stderr_that_nobody_reads_does_not_block_the_server(self, root: Path) -> None:
        """The log goes to stderr, a pipe that fills up."""
        with Server(root) as server:
            server.ask(INITIALIZE)
            for _ in range(2000):
                assert (
                    error_code_of(server.ask(call("context.resolve", {**RESOLVE, "cache": "x" * 200})))
                    == "cache_missing"
                )

    def test_non_blocking_streams_work(self, root: Path) -> None:
        inward, to_server = os.pipe()
        from_server, outward = os.pipe()
        os.set_blocking(inward, False)
        os.set_blocking(outward, False)
        process = subprocess.Popen([COMMAND, "serve", "--stdio"], stdin=inward, stdout=outward, env=environment(root))
        os.close(inward)
        os.close(outward)
        with open(to_server, "wb", buffering=0) as to_server_file, open(from_server, "rb") as from_server_file:
            to_server_file.write(INITIALIZE)
            assert json.loads(from_server_file.readline())["id"] == 0
            to_server_file.write(call("context.resolve", RESOLVE) * 3)
            for _ in range(3):
                assert json.loads(from_server_file.readline())["result"]["isError"] is False
        assert process.wait(timeout=30) == 0

    def test_a_client_that_ignores_sigchld_gets_every_answer(self, root: Path) -> None:
        """An ignored SIGCHLD is inherited, and then the exit status of a child cannot be waited for."""
        script = f"trap '' CHLD; exec {COMMAND} serve --stdio"
        server = subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(root, CONTEXT_TOOL_TIMEOUT_SECS=TIMEOUT_S),
        )
        assert server.stdin
        assert server.stdout
        for line in (INITIALIZE, call("context.list_caches")):
            server.stdin.write(line)
            server.stdin.flush()
            server.stdout.readline()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        for worker in children:
            os.kill(int(worker), signal.SIGSTOP)
        out, _ = server.communicate(call("context.resolve", RESOLVE) * 3, timeout=60)
        answers = [json.loads(line) for line in out.splitlines()]
        assert error_code_of(answers[0]) == "internal_error"
        assert [answer["result"]["isError"] for answer in answers[1:]] == [False, False]
        assert server.returncode == 0

    def test_the_interpreters_limit_of_digits_changes_no_answer(self, root: Path) -> None:
        with Server(root, PYTHONINTMAXSTRDIGITS="640") as server:
            assert server.ask(INITIALIZE.replace(b'"id":0', b'"id":' + b"7" * 700))["id"] == int("7" * 700)
            line = call("context.resolve", RESOLVE).replace(b"4000", b"9" * 5000)
            assert error_code_of(server.ask(line)) == "invalid_budget"

    def test_a_relative_root_whose_folder_is_gone_is_an_io_error(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "here" / "caches").mkdir(parents=True)
        argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--cache-root", "caches"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path / "here")
        assert process.stdin
        assert process.stdout
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        process.stdout.readline()
        subprocess.run(["rm", "-r", tmp_path / "here"], check=True)
        out, _ = process.communicate(call("context.resolve", RESOLVE) + call("context.list_caches"), timeout=60)
        assert [error_code_of(json.loads(line)) for line in out.splitlines()] == ["io_error", "io_error"]
