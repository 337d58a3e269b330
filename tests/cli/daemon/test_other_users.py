"""Several users on one machine: whom the daemon answers, and whose daemon the commands talk to."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support.daemon import RPC, Daemon, Http, Reply
from tests.support.machine import Ran, run_command

ANN, BOB = 61_001, 61_002
ROOT = 0
ACCEPT_S = 10
LIST_TOOLS = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'

pytestmark = pytest.mark.skipif(os.geteuid() != ROOT, reason="only root can act as two users")


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(ROOT)


def become_ann() -> None:
    import_what_is_imported_late()
    os.setuid(ANN)


def import_what_is_imported_late() -> None:
    """Python may be in a folder that only root can read."""
    "x".encode("idna")
    (files("contextfold") / "web").is_dir()


def call_as(user: int, *argv: str) -> Ran:
    # Called as root first, the command imports all it needs.
    nobody_listens = [*argv[:-1], "http://localhost:1"]
    run_command(*nobody_listens)
    with acting_as(user):
        return run_command(*argv, stdin=b'{"cwd": "/p"}')


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user can write to, and reach: pytest's own are closed to others."""
    import_what_is_imported_late()
    folder = Path(tempfile.mkdtemp(prefix="contextfold-users-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def start_anns_daemon(folder: Path, name: str, *argv: str) -> Daemon:
    folder = folder / name
    folder.mkdir()
    folder.chmod(0o777)
    return Daemon(folder, *argv, prepare=become_ann)


@pytest.fixture(scope="module")
def anns_daemon(open_folder: Path) -> Iterator[Daemon]:
    with start_anns_daemon(open_folder, "daemon") as daemon:
        yield daemon


def ask_as(user: int, daemon: Daemon, method: str, path: str, body: bytes | None = None) -> Reply:
    with acting_as(user), Http(daemon.port) as http:
        return http.ask(method, path, body, RPC)


@pytest.mark.parametrize(("user", "status"), [(ANN, 200), (ROOT, 200), (BOB, 403)])
def test_a_daemon_without_tokens_answers_its_user_and_root(anns_daemon: Daemon, user: int, status: int) -> None:
    assert ask_as(user, anns_daemon, "POST", "/mcp", LIST_TOOLS).status == status
    for path in ("/v1/sessions", "/", "/metrics", "/proxy/anthropic/v1/models"):
        assert (ask_as(user, anns_daemon, "GET", path).status == 403) == (status == 403)


def test_the_refusal_says_what_to_do_in_the_format_of_the_protocol(anns_daemon: Daemon) -> None:
    refused = ask_as(BOB, anns_daemon, "POST", "/mcp", LIST_TOOLS).json
    assert refused["jsonrpc"] == "2.0"
    assert refused["error"]["data"]["kind"] == "other_user"
    assert "--allow-other-users" in refused["error"]["message"]


def test_health_is_for_everybody(anns_daemon: Daemon) -> None:
    assert ask_as(BOB, anns_daemon, "GET", "/healthz").status == 200


def test_a_port_that_another_user_takes_over_is_looked_up_again(anns_daemon: Daemon) -> None:
    """Bob's connection has the address and port that Ann's had."""

    def ask(source: tuple[str, int]) -> tuple[bytes, tuple[str, int]]:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(source)
            client.connect(("127.0.0.1", anns_daemon.port))
            client.sendall(b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status = client.recv(65_536).split(b" ")[1]
            # The connection is reset, so that its port is free at once.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return status, client.getsockname()

    with acting_as(ANN):
        status, source = ask(("127.0.0.1", 0))
    assert status == b"200"
    with acting_as(BOB):
        assert ask(source) == (b"403", source)


def test_a_request_whose_sender_has_gone_is_not_taken_for_roots(anns_daemon: Daemon) -> None:
    report = b'{"project_path":"/p","type":"hush","tokens":1}'
    head = f"POST /v1/operations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(report)}\r\n\r\n"
    anns_daemon.pause()
    with acting_as(BOB), socket.create_connection(("127.0.0.1", anns_daemon.port)) as client:
        client.sendall(head.encode() + report)
    anns_daemon.resume()
    assert ask_as(ANN, anns_daemon, "GET", "/v1/sessions").json["sessions"] == []


def test_allow_other_users_lets_everybody_in(open_folder: Path) -> None:
    with start_anns_daemon(open_folder, "open", "--allow-other-users") as daemon:
        assert ask_as(BOB, daemon, "POST", "/mcp", LIST_TOOLS).status == 200


@pytest.fixture
def bobs_port() -> Iterator[socket.socket]:
    with acting_as(BOB):
        listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(ACCEPT_S)
    with listener:
        yield listener


@pytest.mark.parametrize("command", ["doctor", "statusline", "hook"])
def test_a_command_sends_nothing_to_another_users_port(
    bobs_port: socket.socket, open_folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("HOME", str(open_folder))
    url = f"http://localhost:{bobs_port.getsockname()[1]}"
    argv = [command, *(["claude-code"] if command == "hook" else []), "--url", url]
    done = call_as(ANN, *argv)
    connection, _ = bobs_port.accept()
    with connection:
        assert connection.recv(1) == b""
    if command == "doctor":
        assert f"the user with the id {BOB}" in done.out.decode()


def test_a_run_sends_no_prompt_and_no_key_to_another_users_port(
    bobs_port: socket.socket, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without --url starts a daemon of its own; but Ann may not be able to start this Python."""
    monkeypatch.setenv("HOME", str(open_folder))
    with acting_as(ANN):
        refused = run_command("run", "--url", f"http://localhost:{bobs_port.getsockname()[1]}", "true", cwd=open_folder)
    connection, _ = bobs_port.accept()
    with connection:
        assert connection.recv(1) == b""
    assert refused.code == 1
    assert f"the user with the id {BOB}" in refused.err


def test_a_command_talks_to_a_daemon_of_its_own_user_or_of_root(anns_daemon: Daemon, tmp_path: Path) -> None:
    assert b"nothing folded here yet" in call_as(ANN, "statusline", "--url", anns_daemon.url).out
    with Daemon(tmp_path, "--allow-other-users") as roots_daemon:
        assert b"nothing folded here yet" in call_as(ANN, "statusline", "--url", roots_daemon.url).out


def test_a_variable_lets_a_command_trust_another_users_daemon(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_anns_daemon(open_folder, "trusted", "--allow-other-users") as daemon:
        assert b"no daemon" in call_as(BOB, "statusline", "--url", daemon.url).out
        monkeypatch.setenv("CONTEXT_ALLOW_OTHER_USERS", "on")
        assert b"nothing folded here yet" in call_as(BOB, "statusline", "--url", daemon.url).out


def test_a_daemon_with_the_token_of_a_run_accepts_that_token_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path, env={"CONTEXT_RUN_TOKEN": "ctx_of-this-run"}) as daemon, Http(daemon.port) as http:
        statuses = [
            http.ask("GET", "/v1/sessions", headers=headers).status
            for headers in ({}, {"authorization": "Bearer ctx_other"}, {"authorization": "Bearer ctx_of-this-run"})
        ]
        assert statuses == [401, 401, 200]
        proxied = http.ask("GET", "/proxy/anthropic/v1/models")
        assert proxied.status == 401


# ---- where the system does not tell whose sockets there are, as macOS


def tell_nothing() -> None:
    """Take away what Linux asks the kernel by."""
    socket.AF_NETLINK = -1  # type: ignore[misc, assignment]


@pytest.fixture
def silent_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    monkeypatch.setattr(socket, "AF_NETLINK", -1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_a_daemon_proves_to_a_run_whose_it_is(silent_system: dict[str, str], tmp_path: Path) -> None:
    with Daemon(tmp_path / "daemon", prepare=tell_nothing, env=silent_system) as daemon:
        assert run_command("run", "--url", daemon.url, "true", cwd=tmp_path).code == 0
        (secret,) = (tmp_path / "state" / "contextfold" / "daemons").iterdir()
        assert (secret.name, secret.stat().st_mode & 0o777) == (str(daemon.port), 0o600)
        # One that others could read proves nothing.
        secret.chmod(0o644)
        refused = run_command("run", "--url", daemon.url, "true", cwd=tmp_path)
        assert (refused.code, "is not yours" in refused.err) == (1, True)
    assert not secret.exists()


def test_a_run_sends_nothing_but_a_challenge_to_what_cannot_prove_it(
    silent_system: dict[str, str], bobs_port: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXT_TOKEN", "s3cret")
    received: list[bytes] = []

    def answer() -> None:
        connection, _ = bobs_port.accept()
        with connection:
            received.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nok\n" + b"0" * 64 + b"\n")

    listener = threading.Thread(target=answer)
    listener.start()
    refused = run_command("run", "--url", f"http://localhost:{bobs_port.getsockname()[1]}", "true", cwd=tmp_path)
    listener.join()
    assert (refused.code, "is not yours" in refused.err) == (1, True)
    assert b"/healthz?challenge=" in received[0]
    assert b"s3cret" not in received[0]
