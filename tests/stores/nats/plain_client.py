"""Prints messages from NATS. Uses a NATS client and the documented subjects, and imports nothing of ours.

plain_client.py URL SUBJECT REVISION        new messages, until the session state has this revision
"""

import asyncio
import json
import sys

import nats

WAIT_S = 60
MESSAGES_MAX = 1_000


async def main(url: str, subject: str, revision: str) -> None:
    connection = await nats.connect(url)
    subscription = await connection.subscribe(subject)
    await connection.flush()
    print("ready", flush=True)
    for _ in range(MESSAGES_MAX):
        message = await subscription.next_msg(WAIT_S)
        print(json.dumps({"subject": message.subject, "data": json.loads(message.data)}), flush=True)
        if message.subject.endswith(".meta.session_state") and json.loads(message.data)["revision"] == int(revision):
            break
    await connection.close()
    assert not any(name.startswith("contextfold") for name in sys.modules)


asyncio.run(main(*sys.argv[1:]))
