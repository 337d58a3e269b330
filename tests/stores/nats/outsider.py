"""A program that has a NATS client and knows the documented subjects, and nothing of ours. Prints what it gets.

outsider.py live URL SUBJECT COUNT           what comes on a subject from now on, so many messages
outsider.py replay URL STREAM SUBJECT        what a stream holds, from the beginning
outsider.py last URL STREAM SUBJECT          the last message of each subject
"""

import asyncio
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

WAIT_S = 60
MESSAGES_MOST = 1_000


def tell(message) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    print(json.dumps({"subject": message.subject, "data": json.loads(message.data)}), flush=True)


async def live(url: str, subject: str, revision: str) -> None:
    connection = await nats.connect(url)
    subscription = await connection.subscribe(subject)
    await connection.flush()
    print("ready", flush=True)
    for _ in range(MESSAGES_MOST):
        message = await subscription.next_msg(WAIT_S)
        tell(message)
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
            tell(message)
    await connection.close()


async def main(how: str, *given: str) -> None:
    if how == "live":
        await live(*given)
    else:
        policy = DeliverPolicy.ALL if how == "replay" else DeliverPolicy.LAST_PER_SUBJECT
        await stored(policy, *given)
    assert not any(name.startswith("contextfold") for name in sys.modules)


asyncio.run(main(*sys.argv[1:]))
