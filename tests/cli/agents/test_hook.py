"""`context hook`: what a host's hook writes reaches the daemon, and no failure disturbs the agent."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server, socket
from typing import NamedTuple

import pytest

from contextfold.cli.agents.hook import ANSWER_BYTES_MAX, INPUT_BYTES_MAX, WAIT_S
from contextfold.hosts.programs import HOOK_TIMEOUT_S, HOSTS
from tests.support.daemon import kept_port
from tests.support.forked import forker
from tests.support.machine import COMMAND, Ran, as_nobody

SAID = b'{"hook_event_name": "PostToolUse", "tool_name": "Bash"}'
PATIENCE_S = 60
TRIES_MAX = 10
Serve = Callable[[Callable[[socket], None]], str]


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Daemon(HTTPServer):
    """A stand-in for the daemon that records what it receives, and sends a given answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.received: list[Received] = []
        self.status, self.answer = 200, b'{"hookSpecificOutput": {"additionalContext": "\xc3\xa9"}}'

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Daemon

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(Received(self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def odd_daemon() -> Iterator[Serve]:
    """A server at the daemon's address that does anything with a connection."""
    with create_server(("127.0.0.1", 0)) as listening:
        threads = []

        def serve(behave: Callable[[socket], None]) -> str:
            def once() -> None:
                connection, _ = listening.accept()
                with connection:
                    try:
                        behave(connection)
                    except OSError:
                        # The other side has closed the connection.
                        pass

            threads.append(threading.Thread(target=once))
            threads[-1].start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield serve
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def hook(url: str, *argv: str, said: bytes = SAID, host: str = "cursor", **variables: str) -> Ran:
    command = [str(COMMAND), "hook", host, "--url", url, *argv]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables}
    done = forker().run(command, PATIENCE_S, env=env, given=said)
    return Ran(done.returncode, done.stdout, done.stderr.decode())


def heard(daemon: Daemon, *argv: str, url: str = "", said: bytes = SAID, host: str = "cursor", **variables: str) -> Ran:
    """Runs the hook again if it was slow: on a busy machine it may have reached its own timeout."""
    for _ in range(TRIES_MAX):
        daemon.received.clear()
        began_s = time.monotonic()
        ran = hook(url or daemon.url, *argv, said=said, host=host, **variables)
        if time.monotonic() - began_s < WAIT_S:
            break
    return ran


SILENT = Ran(0, b"", "")


class TestWhatIsSaidArrives:
    @pytest.mark.parametrize("host", [host for host in HOSTS if HOSTS[host].hooks])
    def test_it_is_sent_as_it_is_and_the_answer_printed_as_it_is(self, host: str, daemon: Daemon) -> None:
        assert heard(daemon, host=host) == (0, daemon.answer, "")
        (received,) = daemon.received
        assert (received.path, received.body) == (f"/hooks/{host}", SAID)
        assert received.headers["Content-Type"] == "application/json"
        assert received.headers["Host"] == daemon.url.removeprefix("http://")
        assert "Authorization" not in received.headers

    def test_the_daemon_may_be_behind_a_path_and_named_by_its_mcp_endpoint(self, daemon: Daemon) -> None:
        assert heard(daemon, url=daemon.url + "/team/mcp").out == daemon.answer
        assert daemon.received[0].path == "/team/hooks/cursor"

    def test_the_token_comes_from_the_variable_that_is_named(self, daemon: Daemon) -> None:
        heard(daemon, "--token-variable", "MINE", MINE="ctx_abc")
        assert daemon.received[0].headers["Authorization"] == "Bearer ctx_abc"

    @pytest.mark.parametrize("token", ["", "a\r\nX-Evil: 1", "é"])
    def test_what_can_be_no_token_is_not_sent(self, token: str, daemon: Daemon) -> None:
        heard(daemon, "--token-variable", "MINE", MINE=token)
        assert "Authorization" not in daemon.received[0].headers
        assert "X-Evil" not in daemon.received[0].headers

    def test_a_payload_as_large_as_a_tools_output_arrives_whole(self, daemon: Daemon) -> None:
        said = json.dumps({"tool_response": "x" * (8 << 20)}).encode()
        assert heard(daemon, said=said).out == daemon.answer
        assert daemon.received[0].body == said

    def test_the_command_that_install_writes_says_it(self, daemon: Daemon, tmp_path: Path) -> None:
        """The command is run through a shell, with an executable whose path needs quoting."""
        (tmp_path / "it's here").mkdir()
        executable = tmp_path / "it's here" / "context"
        executable.symlink_to(COMMAND)
        project = ("claude-code", "--project", str(tmp_path))
        argv = [str(executable), "install", *project, "--url", daemon.url, "--token-variable", "MINE"]
        subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True)
        settings = json.loads((tmp_path / ".claude" / "settings.local.json").read_text())
        (handler,) = settings["hooks"]["SessionStart"][0]["hooks"]
        env = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "MINE": "ctx_abc"}
        said = subprocess.run(["sh", "-c", handler["command"]], input=SAID, capture_output=True, env=env, check=True)
        assert said.stdout == daemon.answer
        assert daemon.received[0].path == "/hooks/claude-code"
        assert daemon.received[0].headers["Authorization"] == "Bearer ctx_abc"
        uninstall = [str(executable), "uninstall", *project]
        subprocess.run(uninstall, cwd=tmp_path, check=True, capture_output=True)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == [executable]

    @pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not on this machine")
    def test_over_tls_it_goes_to_whom_we_trust_alone(self, daemon: Daemon, tmp_path: Path) -> None:
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        argv = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ]
        subprocess.run([*argv, *subject], check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        daemon.socket = tls.wrap_socket(daemon.socket, server_side=True)
        url = daemon.url.replace("http:", "https:")
        assert hook(url) == SILENT
        assert daemon.received == []
        assert heard(daemon, url=url, SSL_CERT_FILE=str(certificate)).out == daemon.answer


class TestNothingIsNoticed:
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
    def test_an_answer_that_has_nothing_to_tell_is_not_told(self, status: int, answer: bytes, daemon: Daemon) -> None:
        daemon.status, daemon.answer = status, answer
        assert heard(daemon) == SILENT
        assert len(daemon.received) == 1

    def test_a_daemon_that_is_down_is_no_failure(self) -> None:
        with kept_port() as kept:
            assert hook(f"http://localhost:{kept.getsockname()[1]}") == SILENT

    @pytest.mark.parametrize("name", ["no-such-name.invalid", "[::1]"])
    def test_a_daemon_that_is_nowhere_is_no_failure(self, name: str) -> None:
        assert hook(f"http://{name}:1") == SILENT

    def test_a_daemon_that_never_answers_is_not_waited_for(self, odd_daemon: Serve) -> None:
        def silent(connection: socket) -> None:
            while connection.recv(1 << 16):
                pass

        assert hook(odd_daemon(silent)) == SILENT

    def test_a_daemon_that_never_ends_is_not_waited_for(self, odd_daemon: Serve) -> None:
        def endless(connection: socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{")
            tick = threading.Event()
            while not tick.wait(0.05):
                connection.sendall(b" ")

        assert hook(odd_daemon(endless)) == SILENT

    @pytest.mark.parametrize(
        "answer",
        [b"", b"\x00\xff\r\n\r\n{}", b"HTTP/1.1\r\n\r\n{}", b"SSH-2.0 200 x\r\n\r\n{}", b'HTTP/1.1 200 OK\r\n{"a": 1}'],
    )
    def test_something_that_speaks_no_http_is_no_failure(self, answer: bytes, odd_daemon: Serve) -> None:
        def odd(connection: socket) -> None:
            connection.recv(1 << 16)
            connection.sendall(answer)

        assert hook(odd_daemon(odd)) == SILENT

    @pytest.mark.parametrize("said", [b"", b" \r\n", b"x" * (INPUT_BYTES_MAX + 1)])
    def test_an_input_that_is_none_is_not_sent(self, said: bytes, daemon: Daemon) -> None:
        assert hook(daemon.url, said=said) == SILENT
        assert daemon.received == []

    def test_an_input_that_never_ends_is_not_waited_for(self, daemon: Daemon) -> None:
        argv = [str(COMMAND), "hook", "cursor", "--url", daemon.url]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            process.stdin.write(SAID)
            process.stdin.flush()
            assert process.wait(PATIENCE_S) == 0
            assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
        assert daemon.received == []

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_streams_that_are_closed_are_no_failure(self, closed: str, daemon: Daemon) -> None:
        script = f"echo '{{}}' | {COMMAND} hook cursor --url {daemon.url} {closed}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, done.stderr) == (0, b"")

    def test_a_reader_that_is_gone_is_no_failure(self, daemon: Daemon) -> None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        argv = [str(COMMAND), "hook", "cursor", "--url", daemon.url]
        done = subprocess.run(argv, input=SAID, stdout=write_end, stderr=subprocess.PIPE, check=False)
        os.close(write_end)
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(daemon.received) == 1

    def test_it_needs_no_home_and_no_rights(self, daemon: Daemon, tmp_path: Path) -> None:
        ran = as_nobody(tmp_path, "hook", "cursor", "--url", daemon.url, cwd=tmp_path, text_input=SAID.decode())
        assert (ran.returncode, ran.stdout.encode(), ran.stderr) == (0, daemon.answer, "")


class TestWordsAndCost:
    @pytest.mark.parametrize("argv", [["cursor", "--url", "localhost"], ["claude-desktop"], []])
    def test_words_that_make_no_hook_are_a_mistake_of_who_wrote_them(self, argv: list[str]) -> None:
        done = subprocess.run([str(COMMAND), "hook", *argv], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        # Hosts read exit code 2 as a veto.
        assert (done.returncode, done.stdout) == (1, b"")

    def test_it_gives_up_before_its_host_does(self) -> None:
        assert WAIT_S <= HOOK_TIMEOUT_S / 2

    def test_it_loads_next_to_nothing(self, daemon: Daemon) -> None:
        """Every tool call waits for the hook."""
        daemon.answer = b"{}"
        script = f"""
import sys
sys.path[:0] = {sys.path!r}
from contextfold.cli.main import main
code = main(["hook", "cursor", "--url", {daemon.url!r}])
print(code, *sorted(sys.modules))
"""
        argv = [sys.executable, "-I", "-S", "-c", script]
        code, *loaded = subprocess.run(argv, input=SAID, capture_output=True, check=True).stdout.decode().split()
        assert code == "0"
        assert len(daemon.received) == 1
        costly = {"http.client", "urllib.parse", "email", "ssl", "asyncio", "threading", "re", "encodings.idna"}
        assert not costly & set(loaded)
        assert not [name for name in loaded if name.startswith(("mcp", "starlette", "contextfold.serve"))]
