"""Subjects without a prefix, as a NATS subscriber receives them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
from nats.aio.msg import Msg

from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from tests.stores.nats.sample_commits import KEY, branch_commits
from tests.support.nats_servers import NatsServer
from tests.support.waiting import WAIT_TIMEOUT_S

KINDS = ["session.started", "branch.created", "operation.completed", "branch.folded", "operation.completed"]


def test_a_subscriber_without_a_prefix_follows_the_hierarchy(tmp_path: Path) -> None:
    async def act(url: str) -> None:
        connection = await nats.connect(url)
        received: list[Msg] = []
        complete = asyncio.Event()
        session = "local.p1.sess_1"

        async def receive(message: Msg) -> None:
            received.append(message)
            state = json.loads(message.data) if message.subject == f"{session}.meta.session_state" else {}
            if state.get("revision") == 5:
                complete.set()

        await connection.subscribe("local.>", cb=receive)
        await connection.flush()
        store = NatsStore(NatsOptions((url,), ""))
        try:
            for commit in branch_commits(KEY):
                await store.commit(commit)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await complete.wait()
        finally:
            await store.close()
            await connection.close()
        events = [each for each in received if ".events." in each.subject]
        assert [each.subject for each in events] == [f"{session}.events.{kind}" for kind in KINDS]
        assert [json.loads(each.data)["n"] for each in events] == [1, 2, 3, 4, 5]
        branches = [each for each in received if ".branches." in each.subject]
        assert {each.subject for each in branches} == {f"{session}.branches.br_1"}
        assert json.loads(branches[-1].data)["status"] == "folded"
        assert {each.subject.removeprefix(session).split(".")[1] for each in received} == {"events", "branches", "meta"}

    with NatsServer(tmp_path / "nats") as server:
        asyncio.run(act(server.url))


def test_installations_with_and_without_a_prefix_share_a_server(tmp_path: Path) -> None:
    async def act(url: str) -> None:
        stores = [NatsStore(NatsOptions((url,), prefix)) for prefix in ("", "contextfold", "local")]
        try:
            for store in stores[:2]:
                await store.commit(branch_commits(KEY)[0])
            assert [await store.count() for store in stores] == [1, 1, 0]
        finally:
            for store in stores:
                await store.close()

    with NatsServer(tmp_path / "nats") as server:
        asyncio.run(act(server.url))
