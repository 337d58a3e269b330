"""The adapter of nats-py: the only module that uses private names of the library.

The library sends what is left in its buffer before it reports that a connection has ended, which can take long if the
server is gone. It also starts TLS only if the server announces it. Neither can be changed through its public interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nats.aio.client import Client

from contextfold.errors import StoreInvalid

# An attribute of a transport. `tests/stores/test_nats_client.py` has all private names that this module uses.
PRIVATE_WRITER: Final = "_io_writer"


class NatsClient(Client):
    """A connection that reports its end at once, and requires TLS if the address does."""

    def __init__(self, on_end: Callable[[Client], None]) -> None:
        super().__init__()
        self._on_end = on_end

    @property
    def has_jetstream(self) -> bool:
        """Whether the server announces JetStream. A server without it may still be connected to others that have it."""
        return bool(self._server_info.get("jetstream"))

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._on_end(self)
        self._pending = []
        self._pending_data_size = 0
        writer = getattr(self._transport, PRIVATE_WRITER, None)
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise StoreInvalid("NATS: the server does not use TLS; write nats:// instead of tls:// if that is intended")
        await super()._process_info(info, initial_connection)
