"""Requests nobody should send: histories with something broken in them, JSON in strange hands, and bytes that are none.

From a seed, like the histories they are made of. Some happen to be valid still: the laws ask the rules, not this.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.fold.messages.histories import LIST, Format, Message, Pen, history

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
WHOLE: tuple[bytes, ...] = (
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
SPICE: tuple[bytes, ...] = (
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
    dice = random.Random(f"hostile {format} {seed}")
    if dice.random() < 0.05:
        return dice.choice(WHOLE)
    told = history(format, f"hostile {seed}")
    messages: list[Any] = json.loads(json.dumps(told.messages))
    for _ in range(dice.randint(0, 3)):
        if messages:
            dice.choice(CHANGES)(dice, messages)
    members: dict[str, Any] = {"model": "m-1", "max_tokens": 9, "tools": [{"name": "Bash", "input_schema": {}}]}
    for name, chance in (("previous_response_id", 0.02), ("conversation", 0.02)):
        if dice.random() < chance:
            members[name] = dice.choice(("x_1", None, {"id": "x_1"}))
    items = list({**members, LIST[format]: messages}.items())
    dice.shuffle(items)
    body = Pen(dice, dice.choice(("compact", "plain", "indented", "ascii", "wild"))).text(dict(items))
    raw = body.encode("utf-8", "surrogatepass")
    if dice.random() < 0.3:
        raw = _same_ids(dice, raw)
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        raw = _spoiled(dice, raw)
    return raw


def _same_ids(dice: random.Random, raw: bytes) -> bytes:
    """Two branches of one id, or two calls."""
    kind = dice.choice((b"br_", b"toolu_", b"call_", b"sess_"))
    places = [place for place in range(len(raw)) if raw.startswith(kind, place)]
    if len(places) < 2:
        return raw
    size = len(kind) + 12
    one, other = (raw[place : place + size] for place in dice.sample(places, 2))
    return raw.replace(one, other, dice.choice((1, 2, -1)))


def _spoiled(dice: random.Random, raw: bytes) -> bytes:
    place = dice.randrange(len(raw) + 1)
    match dice.randrange(6):
        case 0:
            return raw[:place]
        case 1:
            return raw[:place] + bytes([dice.randrange(256)]) + raw[place + 1 :]
        case 2:
            return raw[:place] + raw[place + dice.randint(1, 40) :]
        case 3:
            return dice.choice((b"\xef\xbb\xbf", b"\n", b"x", b"[")) + raw
        case 4:
            return raw + dice.choice((b"\n", b"x", b"{}", b"}", b"\x00", b","))
    return raw[:place] + dice.choice(SPICE) + raw[place:]


def _drop(dice: random.Random, messages: list[Any]) -> None:
    del messages[dice.randrange(len(messages))]


def _repeat(dice: random.Random, messages: list[Any]) -> None:
    """A client that tries again, and sends some of it twice."""
    first = dice.randrange(len(messages))
    last = min(len(messages), first + dice.choice((1, 1, 2, 4, 9)))
    messages[last:last] = json.loads(json.dumps(messages[first:last]))


def _swap(dice: random.Random, messages: list[Any]) -> None:
    one, other = dice.randrange(len(messages)), dice.randrange(len(messages))
    messages[one], messages[other] = messages[other], messages[one]


def _insert(dice: random.Random, messages: list[Any]) -> None:
    messages.insert(dice.randint(0, len(messages)), dice.choice(ITEMS))


def _new_role(dice: random.Random, messages: list[Any]) -> None:
    one = dice.choice(messages)
    if isinstance(one, dict):
        one["role"] = dice.choice(("user", "assistant", "tool", "system", "developer", "function", "", None, 5, "User"))


def _holders(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(one for member in value.values() for one in _holders(member))]
    return [one for member in value for one in _holders(member)] if isinstance(value, list) else []


def _new_value(dice: random.Random, messages: list[Any]) -> None:
    holders = [holder for holder in _holders(dice.choice(messages)) if holder]
    if holders:
        holder = dice.choice(holders)
        holder[dice.choice(list(holder))] = dice.choice(VALUES)


def _no_member(dice: random.Random, messages: list[Any]) -> None:
    holders = [holder for holder in _holders(dice.choice(messages)) if holder]
    if holders:
        holder = dice.choice(holders)
        del holder[dice.choice(list(holder))]


def _split(dice: random.Random, messages: list[Any]) -> None:
    """One message becomes two of the same role, which the Anthropic API would join again."""
    place = dice.randrange(len(messages))
    one = messages[place]
    content = one.get("content") if isinstance(one, dict) else None
    if isinstance(content, list) and len(content) > 1:
        cut = dice.randrange(1, len(content))
        messages[place : place + 1] = [{**one, "content": content[:cut]}, {**one, "content": content[cut:]}]
    elif isinstance(one, dict) and "role" in one:
        messages.insert(place, {"role": one["role"], "content": "And then?"})


def _join(dice: random.Random, messages: list[Any]) -> None:
    """Two turns' blocks in one message."""
    place = dice.randrange(len(messages))
    one, other = messages[place], messages[min(place + 2, len(messages) - 1)]
    if isinstance(one, dict) and isinstance(other, dict):
        for name in ("content", "tool_calls"):
            if isinstance(one.get(name), list) and isinstance(other.get(name), list):
                one[name] = one[name] + other[name]


CHANGES: tuple[Callable[[random.Random, list[Message]], None], ...] = (
    *(_drop, _repeat, _swap, _insert, _new_role, _new_value, _no_member, _split, _join, _insert, _repeat),
)
