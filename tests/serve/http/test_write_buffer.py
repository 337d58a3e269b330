"""The way out of a connection: in one piece where that is small, in order always, nothing kept back."""

from __future__ import annotations

import asyncio

import pytest

from contextfold.serve.http.write_buffer import BUFFER_MAX_BYTES, BufferedTransport

LARGE = b"x" * (BUFFER_MAX_BYTES + 1)


class Wire(asyncio.Transport):
    """Notes what is written to it, write by write; closed, it still takes what comes, as long as it has something."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 7


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_what_is_written_in_one_turn_leaves_together_at_the_next(wire: Wire) -> None:
    async def write() -> None:
        outgoing = BufferedTransport(wire, asyncio.get_running_loop())
        for part in (b"head ", b"", b"body"):
            outgoing.write(part)
        assert wire.written == []
        await asyncio.sleep(0)
        assert wire.written == [b"head body"]
        outgoing.write(b"more")
        await asyncio.sleep(0)
        assert wire.written == [b"head body", b"more"]

    asyncio.run(write())


def test_it_can_be_told_not_to_wait(wire: Wire) -> None:
    async def write() -> None:
        outgoing = BufferedTransport(wire, asyncio.get_running_loop())
        outgoing.write(b"head ")
        outgoing.write(b"body")
        outgoing.flush()
        assert wire.written == [b"head body"]
        await asyncio.sleep(0)
        assert wire.written == [b"head body"]

    asyncio.run(write())


def test_what_is_large_leaves_at_once_behind_what_came_before(wire: Wire) -> None:
    """Otherwise the transport could not tell a writer to wait, and memory would have no bound."""

    async def write() -> None:
        outgoing = BufferedTransport(wire, asyncio.get_running_loop())
        outgoing.write(b"head")
        outgoing.write(LARGE)
        assert wire.written == [b"head", LARGE]
        for _ in range(1000):
            outgoing.write(LARGE[:1000])
        kept = 1000 * 1000 - sum(map(len, wire.written[2:]))
        assert 0 <= kept <= BUFFER_MAX_BYTES

    asyncio.run(write())


def test_closing_sends_what_is_left_first(wire: Wire) -> None:
    async def write() -> None:
        outgoing = BufferedTransport(wire, asyncio.get_running_loop())
        outgoing.write(b"the end")
        outgoing.close()
        assert (wire.written, wire.closed) == ([b"the end"], True)

    asyncio.run(write())


def test_a_transport_that_closes_itself_gets_all_or_nothing_of_the_rest(wire: Wire) -> None:
    """Which of both is the transport's to say: here nothing is left out between two parts."""

    async def write() -> None:
        outgoing = BufferedTransport(wire, asyncio.get_running_loop())
        wire.close()
        for part in (b"small", LARGE, b"small again"):
            outgoing.write(part)
        await asyncio.sleep(0)
        assert b"".join(wire.written) == b"small" + LARGE + b"small again"

    asyncio.run(write())


def test_all_else_is_the_transports_own(wire: Wire) -> None:
    async def look() -> None:
        outgoing = BufferedTransport(wire, asyncio.get_running_loop())
        assert outgoing.get_write_buffer_size() == 7  # type: ignore[operator]
        assert outgoing.is_closing() is False  # type: ignore[operator]

    asyncio.run(look())
