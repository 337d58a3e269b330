"""Tests what docs/nats.md documents for operators, with real servers: its files, commands and programs."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from contextfold.cli.commands import parse_command_line
from contextfold.cli.setting_options import read_setting_options
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.streams import SubjectNames
from tests.support.daemon import Daemon, Http, HttpAgent, Refused
from tests.support.machine import ROOT, run_command
from tests.support.nats_servers import NatsCluster, NatsServer, free_port
from tests.support.prerequisites import NATS_SERVER
from tests.support.waiting import POLL_INTERVAL_S, until

PAGE = (ROOT / "docs" / "nats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROJECT = "/work/app"
STREAMS = tuple(SubjectNames("contextfold").subjects)
WAIT_S = 60.0
DAEMON_LOGIN = ("--nats-user", "daemon", "--nats-password-file")
PASSWORD = "change-this-too"
NEXT_CENTURY = "2126-01-01T00:00:00Z"
# Three calls take less than this, even on a slow machine.
SHORT_LIVED = {"CONTEXT_SESSION_IDLE_SECS": "8"}


def block(kind: str, *words: str) -> str:
    """The only code block of the page that is of this kind and contains these words."""
    (only,) = [text for language, text in BLOCKS if language == kind and all(word in text for word in words)]
    return str(only)


def accounts() -> str:
    return block("conf", "user: ann")


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "daemon.password"
    path.write_text(f"{PASSWORD}\n")
    return str(path)


@contextmanager
def daemon(folder: Path, store: str, *argv: str, program: Sequence[Path] = ()) -> Iterator[Daemon]:
    running = Daemon(folder, *argv, store=store, program=program)
    try:
        yield running
    finally:
        assert running.stop() == 0


@contextmanager
def agent(running: Daemon) -> Iterator[HttpAgent]:
    client = HttpAgent(running.port)
    try:
        yield client
    finally:
        client.close()


def work(running: Daemon, project: str = PROJECT) -> Any:
    """A session with a branch that is folded."""
    with agent(running) as client:
        branch = client.call("context_branch", description="Search the log", prompt="Use grep", project_path=project)
        client.call("context_record", type="Bash", content="x" * 1640, project_path=project)
        client.call("context_return", message="Found 3 patterns", project_path=project)
        return branch


async def _ignore(_problem: Exception) -> None:
    """Ignores errors, because the tests provoke refusals."""


@asynccontextmanager
async def connection_to(url: str, **options: Any) -> AsyncIterator[Client]:
    connection = await nats.connect(
        url, **{"error_cb": _ignore, "allow_reconnect": False, "connect_timeout": WAIT_S, **options}
    )
    try:
        yield connection
    finally:
        await connection.close()


def url_of(server: NatsServer, who: str = "") -> str:
    return server.url.replace("://", f"://{who}@") if who else server.url


class ConfiguredServer(NatsServer):
    """A server whose whole configuration file is given."""

    def __init__(self, folder: Path, text: str, *, port: int) -> None:
        super().__init__(folder, port=port)
        self._text = f'{text}\nlog_file: "{self.log}"\n'

    def start(self, *, wait: bool = True) -> None:
        config_file = self.folder / "nats.conf"
        config_file.write_text(self._text)
        argv = [str(NATS_SERVER), "-c", str(config_file)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if wait:
            self.wait()


def is_ready(running: Daemon) -> bool:
    http = Http(running.port)
    reply = http.ask("GET", "/readyz")
    http.close()
    return reply.status == 200


class TestCluster:
    @pytest.fixture
    def nodes(self, tmp_path: Path) -> Iterator[list[NatsServer]]:
        """The page's three machines on this one: ports replace host names."""
        text = block("conf", "cluster {")
        ports = [free_port() for _ in range(6)]
        nodes: list[NatsServer] = []
        for number, (port, route_port) in enumerate(zip(ports[:3], ports[3:], strict=True), 1):
            config = text.replace("server_name: n1", f"server_name: n{number}")
            config = config.replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace(
                "0.0.0.0:6222", f"127.0.0.1:{route_port}"
            )
            for other, other_port in enumerate(ports[3:], 1):
                config = config.replace(f"@n{other}:6222", f"@127.0.0.1:{other_port}")
            config = config.replace("/var/lib/nats", str(tmp_path / f"n{number}" / "js"))
            nodes.append(ConfiguredServer(tmp_path / f"n{number}", config, port=port))
        try:
            for node in nodes:
                node.start(wait=False)
            for node in nodes:
                node.wait()
            yield nodes
        finally:
            for node in nodes:
                node.kill()

    @pytest.fixture
    def running(self, nodes: list[NatsServer], tmp_path: Path, password_file: str) -> Iterator[Daemon]:
        """The daemon, started with the page's own command line."""
        script = block("sh", "echo change-this-too")
        assert script.startswith(f"echo {PASSWORD} >")
        words = next(line for line in script.splitlines() if line.startswith("context serve")).split()[1:]
        options = read_setting_options(parse_command_line(words))
        assert options.pop("store") == "nats://n1:4222,nats://n2:4222,nats://n3:4222"
        argv = [f"--{name}={value}" for name, value in (options | {"nats-password-file": password_file}).items()]
        with daemon(tmp_path / "d", ",".join(node.url for node in nodes), *argv) as running:
            until(lambda: is_ready(running))
            yield running

    def test_the_documented_cluster_has_three_replicas_and_works_without_any_one_node(
        self, running: Daemon, nodes: list[NatsServer]
    ) -> None:
        work(running)
        assert asyncio.run(replicas(nodes)) == dict.fromkeys(STREAMS, 3)
        for number, node in enumerate(nodes):
            node.stop()
            until(lambda: is_ready(running))
            until(lambda number=number: fold_succeeds(running, f"/without/{number}"))  # type: ignore[misc]
            node.start()
            until(lambda: is_ready(running))
        with agent(running) as client:
            for project in (PROJECT, *(f"/without/{number}" for number in range(3))):
                assert client.call("context_list_branches", project_path=project)["folded_branches"] == 1

    def test_streams_have_the_number_of_replicas_that_was_set_last(self, tmp_path: Path) -> None:
        seen: list[dict[str, int]] = []
        with NatsCluster(tmp_path / "n") as cluster:
            for number, argv in enumerate(([], ["--nats-replicas", "3"], [])):
                with daemon(tmp_path / f"d{number}", ",".join(cluster.urls), *argv) as running:
                    until(lambda running=running: is_ready(running))  # type: ignore[misc]
                    seen.append(asyncio.run(replicas(cluster.servers, "")))
        assert seen == [dict.fromkeys(STREAMS, number) for number in (1, 3, 3)]


def fold_succeeds(running: Daemon, project: str) -> bool:
    """Folds a branch unless there is one, because a call that failed may have been done."""
    try:
        with agent(running) as client:
            if not client.call("context_list_branches", project_path=project)["folded_branches"]:
                work(running, project)
    except Refused as error:
        if error.message != "State store is unavailable":
            raise
        return False
    return True


async def replicas(nodes: Sequence[NatsServer], who: str = f"daemon:{PASSWORD}") -> dict[str, int]:
    async with connection_to(url_of(nodes[0], who)) as connection:
        streams = {name: await connection.jetstream(timeout=WAIT_S).stream_info(name) for name in STREAMS}
        return {name: info.config.num_replicas or 0 for name, info in streams.items()}


def test_a_server_accepts_the_documented_setting_that_syncs_every_write(tmp_path: Path) -> None:
    text = block("conf", "sync_interval: always").replace("/var/lib/nats", str(tmp_path / "js"))
    port = free_port()
    server = ConfiguredServer(tmp_path / "n", f'{text}\nlisten: "127.0.0.1:{port}"\n', port=port)
    with server, daemon(tmp_path / "d", server.url) as running:
        work(running)


class TestSubjects:
    def test_published_messages_have_the_documented_form(self, tmp_path: Path) -> None:
        shown = [json.loads(text) for kind, text in BLOCKS if kind == "json"]
        assert len(shown) == 3
        with NatsServer(tmp_path / "n") as server, daemon(tmp_path / "d", server.url) as running:
            seen = asyncio.run(subscribed_messages(server.url, running))
        last = {subject.split(".", 4)[4]: data for subject, data in seen}
        for example in shown:
            kind, _, name = example["subject"].split(".", 4)[4].partition(".")
            end = next(end for end in last if end.startswith(kind) and (kind == "branches" or name in end))
            assert list(last[end]) == list(example["data"]), end
            assert list(map(type, last[end].values())) == list(map(type, example["data"].values()))
        kinds = [data["event"] for subject, data in seen if ".events." in subject]
        assert kinds == ["session.started", "branch.created", "operation.completed", "branch.folded"]
        assert {subject.split(".")[0] for subject, _ in seen} == {"contextfold"}
        for kind in kinds:
            assert f"`{kind}`" in PAGE


async def subscribed_messages(url: str, running: Daemon) -> list[tuple[str, Any]]:
    """Everything that a subscription receives while a branch is folded, up to the last state of the session."""
    async with connection_to(url) as connection:
        subscription = await connection.subscribe("contextfold.local.>")
        await connection.flush()
        await asyncio.to_thread(work, running)
        seen: list[tuple[str, Any]] = []
        # The session's state after the fold comes last.
        while not seen or not seen[-1][1].get("folded_tokens"):
            message = await subscription.next_msg(timeout=WAIT_S)
            seen.append((message.subject, json.loads(message.data)))
        return seen


class TestPermissions:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[NatsServer]:
        with NatsServer(tmp_path / "n", config=accounts()) as running:
            yield running

    @pytest.fixture
    def owners(self, server: NatsServer, tmp_path: Path, password_file: str) -> Iterator[dict[str, HttpAgent]]:
        """Callers of a daemon that has only the permissions from the page."""
        tokens = tmp_path / "tokens"
        bearer_tokens = {
            owner: run_command("token", owner, "--token-file", tokens).out.decode().strip() for owner in ("ann", "bob")
        }
        argv = (*DAEMON_LOGIN, password_file, "--token-file", str(tokens))
        with daemon(tmp_path / "d", server.url, *argv) as running:
            client = {
                owner: HttpAgent(running.port, authorization=f"Bearer {token}")
                for owner, token in bearer_tokens.items()
            }
            yield client
            for each in client.values():
                each.close()

    def test_a_daemon_needs_no_more_than_the_documented_permissions(
        self, owners: dict[str, HttpAgent], server: NatsServer
    ) -> None:
        ann = owners["ann"]
        branches = [fold_branch(ann, f"/p/{number}") for number in range(2)]
        ann.call("context_rollback", project_path="/p/0", branch_id=branches[0])
        assert ann.call("context_expand", project_path="/p/1", branch_id=branches[1])["entries"]
        assert ann.call("context_branch_status", project_path="/p/0")["active_branch_id"] == branches[0]
        assert len(ann.http.ask("GET", "/v1/sessions").json["sessions"]) == 2
        assert ann.http.ask("GET", "/v1/summaries?query=Found").json["summaries"]
        assert ann.http.ask("GET", "/readyz").status == 200
        assert "Violation" not in server.log.read_text()

    def test_expiry_watching_and_export_need_no_more_than_the_documented_permissions(
        self, server: NatsServer, tmp_path: Path, password_file: str
    ) -> None:
        argv = (*DAEMON_LOGIN, password_file)
        running = Daemon(tmp_path / "d", *argv, store=server.url, env=SHORT_LIVED)
        watching = http.client.HTTPConnection("127.0.0.1", running.port, timeout=WAIT_S)
        try:
            watching.request("GET", "/v1/events")
            events = watching.getresponse()
            work(running)
            line = b""
            while b"session.expired" not in line:
                line = events.readline()
                assert line
        finally:
            watching.close()
            assert running.stop() == 0
        export = tmp_path / "all.jsonl"
        exported = run_command("store", "export", export, "--store", server.url, "--json", *argv)
        assert exported.code == 0, exported.err
        assert json.loads(exported.out)["exported"]["session"] == 1
        assert "Violation" not in server.log.read_text()

    def test_an_owners_nats_user_can_read_only_the_owners_subjects(
        self, owners: dict[str, HttpAgent], server: NatsServer
    ) -> None:
        for who in ("bob", "ann"):
            fold_branch(owners[who], "/p")
        asyncio.run(check_permissions(url_of(server, "ann:and-this-one"), lambda: fold_branch(owners["ann"], "/q")))

    def test_the_documented_program_prints_the_owners_earlier_and_new_events(
        self, owners: dict[str, HttpAgent], server: NatsServer, tmp_path: Path
    ) -> None:
        for who in ("bob", "ann"):
            fold_branch(owners[who], "/p")
        program = tmp_path / "watch.py"
        program.write_text(block("python", "pull_subscribe"))
        argv = [sys.executable, str(program), url_of(server, "ann:and-this-one"), "ann"]
        watching = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watching.stdout
        try:
            lines = [watching.stdout.readline().split() for _ in range(4)]
            fold_branch(owners["ann"], "/q")
            lines += [watching.stdout.readline().split() for _ in range(4)]
            asyncio.run(end_sessions(server))
            ends = [watching.stdout.readline().split() for _ in range(2)]
            fold_branch(owners["ann"], "/r")
            lines += [watching.stdout.readline().split() for _ in range(4)]
        finally:
            watching.kill()
            _, errors = watching.communicate()
        kinds = ["session.started", "branch.created", "operation.completed", "branch.folded"]
        assert [line[1:] for line in lines] == [[str(n), kind] for n, kind in enumerate(kinds, 1)] * 3, errors
        assert len({line[0] for line in lines}) == 3
        assert sorted(line[0] for line in ends) == sorted({line[0] for line in lines[:8]})
        assert [line[1:] for line in ends] == [["5", "session.expired"]] * 2


async def end_sessions(server: NatsServer) -> None:
    """Ends all sessions, and waits until the server has deleted their last events, and its own markers of that."""
    store = NatsStore(NatsOptions((server.url,), user="daemon", password=PASSWORD), idle_s=1)
    try:
        assert await store.expire(NEXT_CENTURY, NEXT_CENTURY) == 3
        async with asyncio.timeout(WAIT_S):
            while await store._js.last("contextfold_events", "contextfold.*.*.*.events.>"):
                await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        await store.close()


def fold_branch(client: HttpAgent, project: str) -> str:
    branch = client.call("context_branch", description="Look", prompt="Use grep", project_path=project)
    client.call("context_record", type="Bash", content="x" * 400, project_path=project)
    client.call("context_return", message="Found it", project_path=project)
    return str(branch["branch_id"])


FORBIDDEN_SUBSCRIPTIONS = (
    "contextfold.bob.>",
    "contextfold.*.>",
    "contextfold_log.>",
    "contextfold_archive.>",
    "_INBOX.>",
    ">",
)
FORBIDDEN_PUBLICATIONS = (
    "contextfold.ann.p.s.events.x",
    "contextfold_log.ann.p.s",
    "contextfold_archive.ann.p.s.x",
    "$JS.API.STREAM.INFO.contextfold_log",
    "$JS.API.STREAM.MSG.GET.contextfold_events",
    "$JS.API.STREAM.MSG.GET.contextfold_log",
    "$JS.API.STREAM.PURGE.contextfold_events",
    "$JS.API.DIRECT.GET.contextfold_events",
    "$JS.API.CONSUMER.CREATE.contextfold_events.bob.contextfold.ann.>",
    "$JS.API.CONSUMER.CREATE.contextfold_events.ann.contextfold.bob.>",
    "$JS.API.CONSUMER.CREATE.contextfold_events.ann",
    "$JS.API.CONSUMER.CREATE.contextfold_log.ann.contextfold_log.ann.>",
    "$JS.API.CONSUMER.MSG.NEXT.contextfold_events.bob",
    "$JS.API.CONSUMER.NAMES.contextfold_events",
)


async def check_permissions(url: str, work: Callable[[], object]) -> None:
    """Tries to read and write what a user of an owner is not permitted to."""
    refusals: asyncio.Queue[str] = asyncio.Queue()

    async def add(error: Exception) -> None:
        refusals.put_nowait(str(error).removeprefix("nats: permissions violation for "))

    async def expect_refusal(action: str, subject: str) -> None:
        assert await asyncio.wait_for(refusals.get(), WAIT_S) == f'{action} to "{subject.lower()}"'

    async with connection_to(url, error_cb=add, inbox_prefix=b"_INBOX_ann") as connection:
        own = await connection.subscribe("contextfold.ann.>")
        for subject in FORBIDDEN_SUBSCRIPTIONS:
            await connection.subscribe(subject)
            await expect_refusal("subscription", subject)
        for subject in FORBIDDEN_PUBLICATIONS:
            await connection.publish(subject, b"{}", reply="_INBOX_ann.x")
            await expect_refusal("publish", subject)
        filtered = {"name": "ann", "filter_subject": "contextfold.bob.>", "ack_policy": "none"}
        response = await connection.request(
            "$JS.API.CONSUMER.CREATE.contextfold_events.ann.contextfold.ann.>",
            json.dumps({"stream_name": "contextfold_events", "config": filtered}).encode(),
            timeout=WAIT_S,
        )
        assert "did not match filtered subject" in json.loads(response.data)["error"]["description"]
        await asyncio.to_thread(work)
        assert (await own.next_msg(timeout=WAIT_S)).subject.startswith("contextfold.ann.")
        assert refusals.empty()
