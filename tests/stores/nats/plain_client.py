"""Prints messages from NATS. Uses a NATS client and the documented subjects, and imports nothing of ours.

plain_client.py live URL SUBJECT REVISION        new messages, until the session state has this revision
plain_client.py replay URL STREAM SUBJECT        the messages of a stream, from the beginning
plain_client.py last URL STREAM SUBJECT          the last message of each subject
"""

import asyncio
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

WAIT_S = 60
MESSAGES_MAX = 1_000


def print_message(message) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    print(json.dumps({"subject": message.subject, "data": json.loads(message.data)}), flush=True)


async def live(url: str, subject: str, revision: str) -> None:
    connection = await nats.connect(url)
    subscription = await connection.subscribe(subject)
    await connection.flush()
    print("ready", flush=True)
    for _ in range(MESSAGES_MAX):
        message = await subscription.next_msg(WAIT_S)
        print_message(message)
        if message.subject.endswith(".meta.session_state") and json.loads(message.data)["revision"] == int(revision):
            break
    await connection.close()


async def stored(policy: DeliverPolicy, url: str, stream: str, subject: str) -> None:
    connection = await nats.connect(url)
    jetstream = connection.jetstream(timeout=WAIT_S)
    config = ConsumerConfig(deliver_policy=policy, ack_policy=AckPolicy.NONE, filter_subject=subject)
    consumer = await jetstream.add_consumer(stream, config)
    puller = await jetstream.pull_subscribe_bind(consumer.name or "", stream)
    for _ in range(consumer.num_pending or 0):
        for message in await puller.fetch(1, timeout=WAIT_S):
            print_message(message)
    await connection.close()


async def main(mode: str, *arguments: str) -> None:
    if mode == "live":
        await live(*arguments)
    else:
        policy = DeliverPolicy.ALL if mode == "replay" else DeliverPolicy.LAST_PER_SUBJECT
        await stored(policy, *arguments)
    assert not any(name.startswith("contextfold") for name in sys.modules)


asyncio.run(main(*sys.argv[1:]))
