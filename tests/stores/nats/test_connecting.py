"""How a daemon authenticates and connects to NATS, and what it reports when it is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest

from tests.stores.nats.signing import Authority, operator_config
from tests.stores.nats.test_nats_documentation import WAIT_S, agent, block, connection_to, daemon, is_ready, work
from tests.support.daemon import Daemon
from tests.support.machine import COMMAND, run_command
from tests.support.nats_servers import NatsServer, random_prefix
from tests.support.processes import run_in_fork
from tests.support.waiting import until

PROJECT = "/work/app"
PASSWORD = "geheim-47-pw"
USERS = f'accounts {{ CF {{ jetstream: enabled, users: [ {{ user: daemon, password: "{PASSWORD}" }} ] }} }}'


def start_error(store: str, *argv: str) -> str:
    """The error message of a start that must fail."""
    done = run_in_fork("serve", "--port", "0", "--store", store, *argv)
    assert (done.code, done.out) == (5, b""), done.err
    lines = done.err.splitlines()
    assert lines[-2] == "error: State store is unavailable"
    return lines[-1].removeprefix("reason: ")


def status(running: Daemon) -> Any:
    with agent(running) as client:
        return client.call("context_list_branches", project_path=PROJECT)


class TestPasswords:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[NatsServer]:
        with NatsServer(tmp_path / "n", config=USERS) as running:
            yield running

    def test_a_password_from_a_file_is_not_in_the_command_line_or_the_log(
        self, server: NatsServer, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text(f"{PASSWORD}\n")
        argv = ("--nats-user", "daemon", "--nats-password-file", str(secret))
        with daemon(tmp_path / "d", server.url, *argv, program=[COMMAND]) as running:
            work(running)
            assert PASSWORD not in Path(f"/proc/{running.process.pid}/cmdline").read_text()
        assert PASSWORD not in running.log.read_text()

    def test_the_store_setting_may_contain_the_user(self, server: NatsServer, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        store = server.url.replace("://", f"://daemon:{PASSWORD}@")
        config.write_text(f'store = "{store}"\n')
        argv = ("fold", "status", "--all", "--json", "--config", config)
        before = run_command(*argv)
        assert (before.code, before.out) == (5, b"")
        # A command that only reads does not create streams.
        assert "has no stream" in before.err
        with daemon(tmp_path / "d", store):
            pass
        done = run_command(*argv)
        assert (done.code, done.out) == (0, b'{"sessions":[]}\n'), done.err

    @pytest.mark.parametrize("login", ["daemon:geheim-wrong@", "nobody:geheim-wrong@", ""])
    def test_a_refused_login_is_reported_without_the_password(self, server: NatsServer, login: str) -> None:
        error = start_error(server.url.replace("://", f"://{login}"))
        assert error.startswith("NATS refused the connection: ")
        assert "geheim" not in error


def test_a_daemon_connects_with_an_nkey_made_by_the_documented_program(tmp_path: Path) -> None:
    program = tmp_path / "key.py"
    program.write_text(block("python", "encode_seed"))
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=True)
    public = done.stdout.strip()
    seed = tmp_path / "daemon.nk"
    assert seed.stat().st_mode & 0o777 == 0o600
    config = f"accounts {{ CF {{ jetstream: enabled, users: [ {{ nkey: {public} }} ] }} }}"
    with NatsServer(tmp_path / "n", config=config) as server:
        with daemon(tmp_path / "d", server.url, "--nats-nkey", str(seed)) as running:
            work(running)
        assert start_error(server.url).startswith("NATS refused the connection: ")
        seed.write_text("SUnonsense\n")
        error = start_error(server.url, "--nats-nkey", str(seed))
        assert "seed" in error
        assert "nonsense" not in error


def test_a_daemon_connects_with_credentials_signed_by_an_operator(tmp_path: Path) -> None:
    creds = tmp_path / "daemon.creds"
    with NatsServer(tmp_path / "n", config=operator_config(creds)) as server:
        with daemon(tmp_path / "d", server.url, "--nats-creds", str(creds)) as running:
            work(running)
        other = tmp_path / "other.creds"
        operator_config(other)
        assert start_error(server.url, "--nats-creds", str(other)).startswith("NATS refused the connection: ")


class TestTls:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority.made(tmp_path / "ca")

    @contextmanager
    def tls_server(
        self, folder: Path, authority: Authority, more: str = "", address: str = "127.0.0.1"
    ) -> Iterator[str]:
        """A server with the configuration from the documentation page."""
        paths = authority.issue("server", address)
        text = block("conf", "tls {")
        for shown, real in zip(("/etc/nats/server.pem", "/etc/nats/server.key"), paths, strict=True):
            assert shown in text
            text = text.replace(shown, f'"{real}"')
        with NatsServer(folder, config=text.replace("}", f"{more}\n}}")) as server:
            yield server.url.replace("nats://", "tls://")

    def test_a_daemon_connects_only_if_it_knows_the_certificate_authority(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        with self.tls_server(tmp_path / "n", authority) as url:
            with daemon(tmp_path / "d", url, "--nats-tls-ca", authority.path) as running:
                work(running)
            assert "certificate" in start_error(url)
            other = Authority.made(tmp_path / "other")
            assert "certificate" in start_error(url, "--nats-tls-ca", other.path)

    def test_a_certificate_for_another_name_is_refused(self, authority: Authority, tmp_path: Path) -> None:
        with self.tls_server(tmp_path / "n", authority, address="127.0.0.2") as url:
            assert "certificate" in start_error(url, "--nats-tls-ca", authority.path)

    def test_a_daemon_connects_with_a_client_certificate_if_the_server_requires_one(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        client_check = f'  ca_file: "{authority.path}"\n  verify: true'
        certificate, key = authority.issue("daemon")
        argv = ("--nats-tls-ca", authority.path, "--nats-tls-cert", certificate, "--nats-tls-key", key)
        with self.tls_server(tmp_path / "n", authority, client_check) as url:
            with daemon(tmp_path / "d", url, *argv) as running:
                work(running)
            assert "TLS" in start_error(url, "--nats-tls-ca", authority.path)

    @pytest.mark.parametrize("login", ["password", "nkey", "none"])
    def test_nothing_is_sent_to_a_server_without_tls_if_tls_is_required(self, tmp_path: Path, login: str) -> None:
        """Not even to one that pretends to be ours."""
        received: list[bytes] = []
        seed = tmp_path / "daemon.nk"
        seed.write_bytes(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
        argv = ("--nats-nkey", str(seed)) if login == "nkey" else ()
        with scripted_server({"version": "2.15.1", "nonce": "x", "auth_required": True}, received) as url:
            user = f"daemon:{PASSWORD}@" if login == "password" else ""
            assert "does not use TLS" in start_error(url.replace("nats://", f"tls://{user}"), *argv)
        assert received == []

    def test_nothing_is_sent_to_a_server_without_tls_when_the_daemon_reconnects(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        received: list[bytes] = []
        with ExitStack() as server:
            url = server.enter_context(self.tls_server(tmp_path / "n", authority))
            with daemon(tmp_path / "d", url, "--nats-tls-ca", authority.path) as running:
                work(running)
                server.close()
                with scripted_server({"version": "2.15.1"}, received, port=int(url.rpartition(":")[2])):
                    until(lambda: b"does not use TLS" in running.log.read_bytes())
                assert received == []

    @pytest.mark.parametrize("name", ["nats-tls-ca", "nats-tls-cert"])
    def test_a_file_that_is_no_certificate_is_refused(self, authority: Authority, tmp_path: Path, name: str) -> None:
        nonsense = tmp_path / "nonsense"
        nonsense.write_text("this is no certificate\n")
        key = ("--nats-tls-key", str(nonsense)) if name == "nats-tls-cert" else ()
        with self.tls_server(tmp_path / "n", authority) as url:
            assert "check the files" in start_error(url, f"--{name}", str(nonsense), *key)


class TestUnsuitableServers:
    def test_a_server_without_jetstream_is_refused(self, tmp_path: Path) -> None:
        users = "accounts { CF { users: [ { user: daemon, password: pw } ] } }"
        with NatsServer(tmp_path / "n", config=users) as server:
            assert "JetStream" in start_error(server.url.replace("://", "://daemon:pw@"))

    def test_a_server_that_is_too_old_is_refused(self) -> None:
        with scripted_server({"version": "2.11.9"}, []) as url:
            assert start_error(url) == "the NATS server is 2.11.9; 2.12 or later is needed"

    def test_a_cluster_with_fewer_servers_than_replicas_is_refused(self, tmp_path: Path) -> None:
        with NatsServer(tmp_path / "n") as server:
            assert "replicas" in start_error(server.url, "--nats-replicas", "3")

    def test_a_user_without_the_permissions_is_refused(self, tmp_path: Path) -> None:
        rights = 'permissions { publish: "contextfold.>", subscribe: "_INBOX.>" }'
        users = f"accounts {{ CF {{ jetstream: enabled, users: [ {{ user: daemon, password: pw, {rights} }} ] }} }}"
        with NatsServer(tmp_path / "n", config=users) as server:
            error = start_error(server.url.replace("://", "://daemon:pw@"))
            assert error.startswith("NATS does not permit $JS.API.STREAM.INFO.contextfold_log")


@contextmanager
def scripted_server(given: Mapping[str, object], received: list[bytes], port: int = 0) -> Iterator[str]:
    """A server that describes itself like this, answers every PING, and keeps what else it receives."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(60)
        info = {"server_id": "N", "headers": True, "max_payload": 1 << 20, "jetstream": True, **given}

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, client.makefile("rb") as lines:
                    client.sendall(f"INFO {json.dumps(info)} \r\n".encode())
                    for line in lines:
                        if line.startswith(b"PING"):
                            client.sendall(b"PONG\r\n")
                        else:
                            received.append(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


class TestSeparation:
    def test_two_installations_on_one_server_do_not_see_each_other(self, tmp_path: Path) -> None:
        with NatsServer(tmp_path / "n") as server:
            # One name is a prefix of the other.
            names = ("team", "team-1")
            with (
                daemon(tmp_path / "a", server.url, "--nats-prefix", names[0]) as one,
                daemon(tmp_path / "b", server.url, "--nats-prefix", names[1]) as other,
            ):
                branch = work(one)
                assert status(other)["total_branches"] == 0
                with agent(other) as client:
                    assert client.http.ask("GET", "/v1/sessions").json["sessions"] == []
                    assert client.http.ask("GET", "/v1/summaries?query=Found").json["summaries"] == []
                assert work(other)["session_id"] != branch["session_id"]
                assert status(one)["total_branches"] == 1

    def test_a_jetstream_domain_is_used_by_its_name(self, tmp_path: Path) -> None:
        server = NatsServer(tmp_path / "n", config='jetstream { domain: "hub" }')
        with server, daemon(tmp_path / "d", server.url, "--nats-domain", "hub") as running:
            work(running)


class TestProcesses:
    def test_a_daemon_that_is_refused_after_a_restart_of_nats_returns_when_it_is_accepted_again(
        self, tmp_path: Path
    ) -> None:
        store = f"nats://daemon:{PASSWORD}@127.0.0.1"
        server = NatsServer(tmp_path / "n", config=USERS)
        with server, daemon(tmp_path / "d", f"{store}:{server.port}") as running:
            work(running)
            server.stop()
            server.config = USERS.replace(PASSWORD, "another")
            server.start()
            until(lambda: b"NATS refused the connection" in running.log.read_bytes())
            assert not is_ready(running)
            server.stop()
            server.config = USERS
            server.start()
            until(lambda: is_ready(running))
            work(running)

    def test_a_branch_of_a_stdio_server_is_visible_to_a_daemon_at_once(self, tmp_path: Path) -> None:
        server = NatsServer(tmp_path / "n")
        with server, daemon(tmp_path / "d", server.url) as running, Stdio(server.url) as stdio:
            branch = stdio.call("context_branch", description="d", prompt="p", project_path=PROJECT)
            assert status(running)["total_branches"] == 1
            # Between calls, nothing in that process reads from the connection.
            server.kill()
            server.start()
            until(lambda: is_ready(running))
            stdio.call("context_return", message="m", project_path=PROJECT)
            assert status(running)["branches"][0]["id"] == branch["branch_id"]
            assert status(running)["folded_branches"] == 1

    def test_a_stdio_server_publishes_before_it_answers(self, tmp_path: Path) -> None:
        """The server does nothing between calls and no daemon runs, so nothing may be postponed."""
        with NatsServer(tmp_path / "n") as server, Stdio(server.url) as stdio:
            branch = stdio.call("context_branch", description="d", prompt="p", project_path=PROJECT)
            state = published_state(server, f"branches.{branch['branch_id']}")
            assert state["status"] == "active"

    def test_a_copy_of_a_stopped_servers_folder_is_a_complete_backup(self, tmp_path: Path) -> None:
        prefix = random_prefix()
        with (
            NatsServer(tmp_path / "n") as server,
            daemon(tmp_path / "d", server.url, "--nats-prefix", prefix) as running,
        ):
            branch = work(running)
            server.stop()
            shutil.copytree(tmp_path / "n" / "js", tmp_path / "restored" / "js")
        with (
            NatsServer(tmp_path / "restored") as server,
            daemon(tmp_path / "d2", server.url, "--nats-prefix", prefix) as running,
            agent(running) as client,
        ):
            expanded = client.call("context_expand", project_path=PROJECT, branch_id=branch["branch_id"])
            assert [entry["kind"] for entry in expanded["entries"]] == ["prompt", "operation", "summary"]
            assert status(running)["folded_branches"] == 1


def published_state(server: NatsServer, subject_end: str) -> Any:
    async def read() -> Any:
        async with connection_to(server.url) as connection:
            query = json.dumps({"last_by_subj": f"contextfold.*.*.*.{subject_end}"}).encode()
            response = await connection.request("$JS.API.STREAM.MSG.GET.contextfold_state", query, timeout=WAIT_S)
            return json.loads(base64.b64decode(json.loads(response.data)["message"]["data"]))

    return asyncio.run(read())


class Stdio:
    """A stdio server with the fold tools, as a host starts it."""

    def __init__(self, store: str) -> None:
        argv = [str(COMMAND), "serve", "--stdio", "--tools", "fold", "--store", store]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self) -> Stdio:
        self._request("initialize", {})
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def call(self, tool: str, **arguments: str) -> Any:
        return json.loads(self._request("tools/call", {"name": tool, "arguments": arguments})["content"][0]["text"])

    def _request(self, method: str, params: Mapping[str, object]) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "result" in answer, answer
        return answer["result"]
