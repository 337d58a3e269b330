"""The connections between the servers of a cluster, through which one server can be cut off and still be reached.

Every server advertises an address that leads here, and from here to the server. The caller is recognised by its first
bytes. A connection that is cut drops everything silently, as networks do, and is closed when the cut is repaired.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.stores.nats.proxy import Proxy, Wire

# A caller sends its name within this many bytes.
NAME_MAX_BYTES = 16_384
_NAME = re.compile(rb'"server_name":"([^"]+)"')


class Routes(Proxy):
    def __init__(self) -> None:
        super().__init__()
        self.cut_off_name: str | None = None

    def __enter__(self) -> Routes:
        return self

    def route_ports(self, ports: Mapping[str, int]) -> dict[str, int]:
        """For every server, by name, a port that leads to it."""
        return {name: self.listen(port, lambda name=name: _Route(self, name)) for name, port in ports.items()}  # type: ignore[misc]

    def cut_off(self, name: str) -> None:
        """From now on, a server and the others receive nothing from each other."""
        self.cut_off_name = name

    def heal(self) -> None:
        self.cut_off_name = None
        self.run(self._close_cut_wires())

    async def _close_cut_wires(self) -> None:
        for wire in list(self.wires):
            if isinstance(wire, _Route) and wire.has_dropped:
                wire.close()


class _Route(Wire):
    def __init__(self, routes: Routes, callee: str) -> None:
        super().__init__()
        self._routes, self._callee, self._caller = routes, callee, ""
        self._first_bytes = b""
        # This is set when bytes were dropped.
        self.has_dropped = False

    async def passes(self, chunk: bytes, *, is_from_caller: bool) -> bool:
        if is_from_caller and not self._caller and len(self._first_bytes) < NAME_MAX_BYTES:
            self._first_bytes += chunk
            match = _NAME.search(self._first_bytes)
            self._caller = match[1].decode() if match else ""
        self.has_dropped |= self._routes.cut_off_name in (self._callee, self._caller)
        return not self.has_dropped
