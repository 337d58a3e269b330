"""Requests that no client should send: broken histories, unusual JSON, and bytes that are not JSON.

They are generated from a seed, like the histories they are made of. Some are still valid, so the laws check each
request with the rules of its API.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.fold.messages.histories import LIST, Format, JsonWriter, Message, generate_history

DEEP = 100_000
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1.5, 10**30, "", " ", "user", "tool", "tool_result", "context_branch", "br_0", "\ud800", "\x00"),
    *([], {}, [[]], [None], {"type": "text"}, [{"type": "text"}], [{"type": "text", "text": 5}], {"role": "user"}),
)
ITEMS: tuple[Any, ...] = (
    *(
        None,
        5,
        "text",
        [],
        {},
        {"role": "user"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": []},
    ),
    *({"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "{}"}),
    *({"type": "item_reference", "id": "msg_1"}, {"type": "mcp_call", "id": "mcp_1", "name": "context_branch"}),
    *({"type": "web_search_call", "id": "ws_1"}, {"type": "compaction", "encrypted_content": "x"}, {"type": None}),
    *({"role": "system", "content": "x"}, {"role": "developer", "content": "x"}, {"type": "reasoning", "summary": []}),
)
BODIES: tuple[bytes, ...] = (
    *(b"", b" ", b"null", b"[]", b"{}", b'"x"', b"5", b"{", b"[", b'{"messages":', b'{"messages":[]}', b'{"input":[]}'),
    *(b'{"messages":{}}', b'{"input":"x"}', b'{"messages":"x"}', b'{"messages":[],"messages":[]}', b"\xff", b"\x00"),
    *(
        b'{"messages":[null]}',
        b'{"input":[null,5,"x",[]]}',
        b'{"messages":[[[]]]}',
        b'{"messages":[{},{}]}',
        b'{"a":1}',
    ),
    *(b"[" * DEEP, b'{"a":' * DEEP, b'{"messages":[' + b"[" * DEEP + b"]" * DEEP + b"]}", b'{"messages":[1,]}'),
    *(
        b'{"messages":[' + b"9" * 5000 + b"]}",
        b'{"messages":[1e999,NaN,-Infinity]}',
        b"\xef\xbb\xbf{}",
        b'{"messages" []}',
    ),
    *(
        b'{"input":[' + b'{"role":"user","content":"x"},' * 3000 + b"5]}",
        b'{"messages":[{"role":"user","role":"user"}]}',
    ),
)
FRAGMENTS: tuple[bytes, ...] = (
    *(
        b"\xff",
        b"\x00",
        b"\xed\xa0\x80",
        b"\\ud800",
        b",",
        b",,",
        b"]",
        b"}",
        b'"',
        b"\\",
        b"[",
        b"{",
        b"NaN",
        b"1e999",
    ),
    *(b"/**/", b"\n", b"\xc3", b"\\u0000", b":", b"'", b"\xe2\x80\xa8", b'"error":1,', b'"role":"user",', b"9" * 4400),
)


def request(format: Format, seed: str) -> bytes:
    """A request that is probably broken."""
    rng = random.Random(f"hostile {format} {seed}")
    if rng.random() < 0.05:
        return rng.choice(BODIES)
    history = generate_history(format, f"hostile {seed}")
    messages: list[Any] = json.loads(json.dumps(history.messages))
    for _ in range(rng.randint(0, 3)):
        if messages:
            rng.choice(MUTATIONS)(rng, messages)
    members: dict[str, Any] = {"model": "m-1", "max_tokens": 9, "tools": [{"name": "Bash", "input_schema": {}}]}
    for name, chance in (("previous_response_id", 0.02), ("conversation", 0.02)):
        if rng.random() < chance:
            members[name] = rng.choice(("x_1", None, {"id": "x_1"}))
    items = list({**members, LIST[format]: messages}.items())
    rng.shuffle(items)
    body = JsonWriter(rng, rng.choice(("compact", "plain", "indented", "ascii", "wild"))).text(dict(items))
    raw = body.encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        raw = _same_ids(rng, raw)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        raw = _corrupted(rng, raw)
    return raw


def _same_ids(rng: random.Random, raw: bytes) -> bytes:
    """Gives two branches, calls or sessions the same id."""
    kind = rng.choice((b"br_", b"toolu_", b"call_", b"sess_"))
    offsets = [offset for offset in range(len(raw)) if raw.startswith(kind, offset)]
    if len(offsets) < 2:
        return raw
    size = len(kind) + 12
    first, second = (raw[offset : offset + size] for offset in rng.sample(offsets, 2))
    return raw.replace(first, second, rng.choice((1, 2, -1)))


def _corrupted(rng: random.Random, raw: bytes) -> bytes:
    offset = rng.randrange(len(raw) + 1)
    match rng.randrange(6):
        case 0:
            return raw[:offset]
        case 1:
            return raw[:offset] + bytes([rng.randrange(256)]) + raw[offset + 1 :]
        case 2:
            return raw[:offset] + raw[offset + rng.randint(1, 40) :]
        case 3:
            return rng.choice((b"\xef\xbb\xbf", b"\n", b"x", b"[")) + raw
        case 4:
            return raw + rng.choice((b"\n", b"x", b"{}", b"}", b"\x00", b","))
    return raw[:offset] + rng.choice(FRAGMENTS) + raw[offset:]


def _drop(rng: random.Random, messages: list[Any]) -> None:
    del messages[rng.randrange(len(messages))]


def _repeat(rng: random.Random, messages: list[Any]) -> None:
    """Repeats a few messages, as a client does that tries again."""
    first = rng.randrange(len(messages))
    last = min(len(messages), first + rng.choice((1, 1, 2, 4, 9)))
    messages[last:last] = json.loads(json.dumps(messages[first:last]))


def _swap(rng: random.Random, messages: list[Any]) -> None:
    first, second = rng.randrange(len(messages)), rng.randrange(len(messages))
    messages[first], messages[second] = messages[second], messages[first]


def _insert(rng: random.Random, messages: list[Any]) -> None:
    messages.insert(rng.randint(0, len(messages)), rng.choice(ITEMS))


def _change_role(rng: random.Random, messages: list[Any]) -> None:
    message = rng.choice(messages)
    if isinstance(message, dict):
        message["role"] = rng.choice(
            ("user", "assistant", "tool", "system", "developer", "function", "", None, 5, "User")
        )


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(one for member in value.values() for one in _objects(member))]
    return [one for member in value for one in _objects(member)] if isinstance(value, list) else []


def _change_value(rng: random.Random, messages: list[Any]) -> None:
    objects = [object_ for object_ in _objects(rng.choice(messages)) if object_]
    if objects:
        object_ = rng.choice(objects)
        object_[rng.choice(list(object_))] = rng.choice(VALUES)


def _remove_member(rng: random.Random, messages: list[Any]) -> None:
    objects = [object_ for object_ in _objects(rng.choice(messages)) if object_]
    if objects:
        object_ = rng.choice(objects)
        del object_[rng.choice(list(object_))]


def _split(rng: random.Random, messages: list[Any]) -> None:
    """Splits one message into two of the same role, which the Anthropic API would join again."""
    index = rng.randrange(len(messages))
    message = messages[index]
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and len(content) > 1:
        cut = rng.randrange(1, len(content))
        messages[index : index + 1] = [{**message, "content": content[:cut]}, {**message, "content": content[cut:]}]
    elif isinstance(message, dict) and "role" in message:
        messages.insert(index, {"role": message["role"], "content": "And then?"})


def _join(rng: random.Random, messages: list[Any]) -> None:
    """Puts the blocks of two turns into one message."""
    index = rng.randrange(len(messages))
    first, second = messages[index], messages[min(index + 2, len(messages) - 1)]
    if isinstance(first, dict) and isinstance(second, dict):
        for name in ("content", "tool_calls"):
            if isinstance(first.get(name), list) and isinstance(second.get(name), list):
                first[name] = first[name] + second[name]


MUTATIONS: tuple[Callable[[random.Random, list[Message]], None], ...] = (
    *(_drop, _repeat, _swap, _insert, _change_role, _change_value, _remove_member, _split, _join, _insert, _repeat),
)
