"""`context hook`: it passes the payload of a host's hook to the daemon, and no failure disturbs the agent."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server, socket
from typing import NamedTuple

import pytest

from contextfold.cli.hook import ANSWER_BYTES_MAX, INPUT_BYTES_MAX, WAIT_S
from tests.support.daemon import reserve_port
from tests.support.machine import COMMAND, Ran, as_nobody, run_command

PAYLOAD = b'{"hook_event_name": "PostToolUse", "tool_name": "Bash"}'
PATIENCE_S = 60
TRIES_MAX = 10
Serve = Callable[[Callable[[socket], None]], str]


class ReceivedRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class RecordingDaemon(HTTPServer):
    """A stand-in for the daemon: it records each request and sends a given answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), DaemonHandler)
        self.received: list[ReceivedRequest] = []
        self.status, self.answer = 200, b'{"hookSpecificOutput": {"additionalContext": "\xc3\xa9"}}'

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}"


class DaemonHandler(BaseHTTPRequestHandler):
    server: RecordingDaemon

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(ReceivedRequest(self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[RecordingDaemon]:
    with RecordingDaemon() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def misbehaving_daemon() -> Iterator[Serve]:
    """A server at the daemon's address that treats a connection as the test wants."""
    with create_server(("127.0.0.1", 0)) as listening:
        threads = []

        def serve(behave: Callable[[socket], None]) -> str:
            def serve_one() -> None:
                connection, _ = listening.accept()
                with connection:
                    try:
                        behave(connection)
                    except OSError:
                        # The other side has closed the connection.
                        pass

            threads.append(threading.Thread(target=serve_one))
            threads[-1].start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield serve
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def hook(url: str, *argv: str, payload: bytes = PAYLOAD, host: str = "claude-code", **variables: str) -> Ran:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables}
    return run_command("hook", host, "--url", url, *argv, env=env, stdin=payload)


def hook_in_time(
    daemon: RecordingDaemon,
    *argv: str,
    url: str = "",
    payload: bytes = PAYLOAD,
    host: str = "claude-code",
    **variables: str,
) -> Ran:
    """Runs the hook, and again if it was slow: on a busy machine it may have reached its own timeout."""
    for _ in range(TRIES_MAX):
        daemon.received.clear()
        began_s = time.monotonic()
        ran = hook(url or daemon.url, *argv, payload=payload, host=host, **variables)
        if time.monotonic() - began_s < WAIT_S:
            break
    return ran


SILENT = Ran(0, b"", "")


class TestDelivery:
    def test_payload_and_answer_are_passed_on_unchanged(self, daemon: RecordingDaemon) -> None:
        assert hook_in_time(daemon) == (0, daemon.answer, "")
        (received,) = daemon.received
        assert (received.path, received.body) == ("/hooks/claude-code", PAYLOAD)
        assert received.headers["Content-Type"] == "application/json"
        assert received.headers["Host"] == daemon.url.removeprefix("http://")
        assert "Authorization" not in received.headers

    def test_the_url_may_have_a_path_and_may_be_the_mcp_endpoint(self, daemon: RecordingDaemon) -> None:
        assert hook_in_time(daemon, url=daemon.url + "/team/mcp").out == daemon.answer
        assert daemon.received[0].path == "/team/hooks/claude-code"

    def test_the_token_is_read_from_the_named_variable(self, daemon: RecordingDaemon) -> None:
        hook_in_time(daemon, "--token-variable", "MINE", MINE="ctx_abc")
        assert daemon.received[0].headers["Authorization"] == "Bearer ctx_abc"

    @pytest.mark.parametrize("token", ["", "a\r\nX-Evil: 1", "é"])
    def test_an_invalid_token_is_not_sent(self, token: str, daemon: RecordingDaemon) -> None:
        hook_in_time(daemon, "--token-variable", "MINE", MINE=token)
        assert "Authorization" not in daemon.received[0].headers
        assert "X-Evil" not in daemon.received[0].headers

    def test_a_large_payload_arrives_complete(self, daemon: RecordingDaemon) -> None:
        payload = json.dumps({"tool_response": "x" * (8 << 20)}).encode()
        assert hook_in_time(daemon, payload=payload).out == daemon.answer
        assert daemon.received[0].body == payload

    def test_the_command_that_install_writes_delivers_a_payload(self, daemon: RecordingDaemon, tmp_path: Path) -> None:
        """The command is run through a shell, with an executable whose path needs quoting."""
        (tmp_path / "it's here").mkdir()
        executable = tmp_path / "it's here" / "context"
        executable.symlink_to(COMMAND)
        claude = tmp_path / "claude"
        claude.write_text("#!/bin/sh\n")
        claude.chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "MINE": "ctx_abc"}
        argv = [str(executable), "install", "claude-code", "--url", daemon.url, "--token-variable", "MINE"]
        subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, env=env)
        (hooks,) = tmp_path.rglob("hooks.json")
        (handler,) = json.loads(hooks.read_text())["hooks"]["SessionStart"][0]["hooks"]
        delivered = subprocess.run(
            ["sh", "-c", handler["command"]], input=PAYLOAD, capture_output=True, env=env, check=True
        )
        assert delivered.stdout == daemon.answer
        assert daemon.received[0].path == "/hooks/claude-code"
        assert daemon.received[-1].headers["Authorization"] == "Bearer ctx_abc"

    def test_only_the_start_of_a_session_says_that_no_daemon_runs(self) -> None:
        with reserve_port() as reserved:
            url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
            start = hook(url, payload=b'{"hook_event_name": "SessionStart"}')
            assert f"no daemon at {url}" in json.loads(start.out)["systemMessage"]
            assert hook(url) == SILENT

    @pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not on this machine")
    def test_over_tls_only_a_trusted_certificate_is_accepted(self, daemon: RecordingDaemon, tmp_path: Path) -> None:
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        argv = [*request.split(), "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*argv, *subject], check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        daemon.socket = tls.wrap_socket(daemon.socket, server_side=True)
        url = daemon.url.replace("http:", "https:")
        assert hook(url) == SILENT
        assert daemon.received == []
        assert hook_in_time(daemon, url=url, SSL_CERT_FILE=str(certificate)).out == daemon.answer


def never_answers(connection: socket) -> None:
    while connection.recv(1 << 16):
        pass


def never_ends(connection: socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{")
    tick = threading.Event()
    while not tick.wait(0.05):
        connection.sendall(b" ")


def speaks_no_http(connection: socket, answer: bytes) -> None:
    connection.recv(1 << 16)
    connection.sendall(answer)


MISBEHAVIOURS: dict[str, Callable[[socket], None]] = {
    "never answers": never_answers,
    "never ends": never_ends,
    "says nothing": partial(speaks_no_http, answer=b""),
    "answers in bytes": partial(speaks_no_http, answer=b"\x00\xff\r\n\r\n{}"),
    "gives no status": partial(speaks_no_http, answer=b"HTTP/1.1\r\n\r\n{}"),
    "speaks another protocol": partial(speaks_no_http, answer=b"SSH-2.0 200 x\r\n\r\n{}"),
    "ends within its headers": partial(speaks_no_http, answer=b'HTTP/1.1 200 OK\r\n{"a": 1}'),
}


class TestFailuresAreSilent:
    @pytest.mark.parametrize(
        ("status", "answer"),
        [
            (204, b""),
            (200, b""),
            (200, b"{}"),
            (200, b" { } \n"),
            (200, b"[1]"),
            (200, b'"block"'),
            (200, b"all is well"),
            (200, b'{"decision": "blo'),
            (200, b'{"a": "\xff"}'),
            (200, b'{"a":' * 100_000),
            (200, b'{"a": "' + b"x" * ANSWER_BYTES_MAX + b'"}'),
            (302, b'{"a": 1}'),
            (401, b'{"error": {}}'),
            (404, b'{"error": {}}'),
            (500, b'{"error": {}}'),
        ],
    )
    def test_an_empty_invalid_or_failed_answer_is_not_printed(
        self, status: int, answer: bytes, daemon: RecordingDaemon
    ) -> None:
        daemon.status, daemon.answer = status, answer
        assert hook_in_time(daemon) == SILENT
        assert len(daemon.received) == 1

    def test_a_daemon_that_is_down_is_no_failure(self) -> None:
        with reserve_port() as reserved:
            assert hook(f"http://localhost:{reserved.getsockname()[1]}") == SILENT

    @pytest.mark.parametrize("name", ["no-such-name.invalid", "[::1]"])
    def test_an_unreachable_address_is_no_failure(self, name: str) -> None:
        assert hook(f"http://{name}:1") == SILENT

    @pytest.mark.parametrize("behave", MISBEHAVIOURS)
    def test_a_daemon_that_misbehaves_is_no_failure(self, behave: str, misbehaving_daemon: Serve) -> None:
        argv = [str(COMMAND), "hook", "claude-code", "--url", misbehaving_daemon(MISBEHAVIOURS[behave])]
        done = subprocess.run(argv, input=PAYLOAD, capture_output=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    @pytest.mark.parametrize("payload", [b"", b" \r\n", b"x" * (INPUT_BYTES_MAX + 1)])
    def test_an_empty_or_too_large_input_is_not_sent(self, payload: bytes, daemon: RecordingDaemon) -> None:
        assert hook(daemon.url, payload=payload) == SILENT
        assert daemon.received == []

    def test_an_input_that_never_ends_is_not_waited_for(self, daemon: RecordingDaemon) -> None:
        argv = [str(COMMAND), "hook", "claude-code", "--url", daemon.url]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            process.stdin.write(PAYLOAD)
            process.stdin.flush()
            assert process.wait(PATIENCE_S) == 0
            assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
        assert daemon.received == []

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_closed_streams_are_no_failure(self, closed: str, daemon: RecordingDaemon) -> None:
        script = f"echo '{{}}' | {COMMAND} hook claude-code --url {daemon.url} {closed}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, done.stderr) == (0, b"")

    def test_a_closed_stdout_pipe_is_no_failure(self, daemon: RecordingDaemon) -> None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        argv = [str(COMMAND), "hook", "claude-code", "--url", daemon.url]
        done = subprocess.run(argv, input=PAYLOAD, stdout=write_end, stderr=subprocess.PIPE, check=False)
        os.close(write_end)
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(daemon.received) == 1

    def test_it_needs_no_home_folder_and_no_permissions(self, daemon: RecordingDaemon, tmp_path: Path) -> None:
        ran = as_nobody(tmp_path, "hook", "claude-code", "--url", daemon.url, cwd=tmp_path, text_input=PAYLOAD.decode())
        assert (ran.returncode, ran.stdout.encode(), ran.stderr) == (0, daemon.answer, "")


class TestUsage:
    @pytest.mark.parametrize("argv", [["claude-code", "--url", "localhost"], ["cursor"], []])
    def test_invalid_arguments_are_exit_1(self, argv: list[str]) -> None:
        done = subprocess.run([str(COMMAND), "hook", *argv], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        # Hosts read exit code 2 as a veto.
        assert (done.returncode, done.stdout) == (1, b"")
