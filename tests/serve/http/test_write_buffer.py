"""Small writes to a connection are sent together, and everything is sent in order."""

from __future__ import annotations

import asyncio

import pytest

from contextfold.serve.http.uvicorn_adapter import BUFFER_MAX_BYTES, BufferedTransport

LARGE = b"x" * (BUFFER_MAX_BYTES + 1)


class RecordingTransport(asyncio.Transport):
    """Records each write, after it was closed too."""

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
def transport() -> RecordingTransport:
    return RecordingTransport()


def test_writes_of_one_loop_iteration_are_sent_together(transport: RecordingTransport) -> None:
    async def write() -> None:
        buffered = BufferedTransport(transport, asyncio.get_running_loop())
        for part in (b"head ", b"", b"body"):
            buffered.write(part)
        assert transport.written == []
        await asyncio.sleep(0)
        assert transport.written == [b"head body"]
        buffered.write(b"more")
        await asyncio.sleep(0)
        assert transport.written == [b"head body", b"more"]

    asyncio.run(write())


def test_flush_sends_at_once(transport: RecordingTransport) -> None:
    async def write() -> None:
        buffered = BufferedTransport(transport, asyncio.get_running_loop())
        buffered.write(b"head ")
        buffered.write(b"body")
        buffered.flush()
        assert transport.written == [b"head body"]
        await asyncio.sleep(0)
        assert transport.written == [b"head body"]

    asyncio.run(write())


def test_a_large_write_is_sent_at_once_after_what_was_buffered(transport: RecordingTransport) -> None:
    """Otherwise the transport could not tell a writer to wait, and memory would have no bound."""

    async def write() -> None:
        buffered = BufferedTransport(transport, asyncio.get_running_loop())
        buffered.write(b"head")
        buffered.write(LARGE)
        assert transport.written == [b"head", LARGE]
        for _ in range(1000):
            buffered.write(LARGE[:1000])
        unsent = 1000 * 1000 - sum(map(len, transport.written[2:]))
        assert 0 <= unsent <= BUFFER_MAX_BYTES

    asyncio.run(write())


def test_closing_sends_the_buffer_first(transport: RecordingTransport) -> None:
    async def write() -> None:
        buffered = BufferedTransport(transport, asyncio.get_running_loop())
        buffered.write(b"the end")
        buffered.close()
        assert (transport.written, transport.closed) == ([b"the end"], True)

    asyncio.run(write())


def test_a_closing_transport_gets_all_writes_in_order(transport: RecordingTransport) -> None:
    """If the transport drops writes, it drops all of them: none is missing between two others."""

    async def write() -> None:
        buffered = BufferedTransport(transport, asyncio.get_running_loop())
        transport.close()
        for part in (b"small", LARGE, b"small again"):
            buffered.write(part)
        await asyncio.sleep(0)
        assert b"".join(transport.written) == b"small" + LARGE + b"small again"

    asyncio.run(write())


def test_other_methods_are_those_of_the_transport(transport: RecordingTransport) -> None:
    async def read() -> None:
        buffered = BufferedTransport(transport, asyncio.get_running_loop())
        assert buffered.get_write_buffer_size() == 7  # type: ignore[operator]
        assert buffered.is_closing() is False  # type: ignore[operator]

    asyncio.run(read())
