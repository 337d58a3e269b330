"""Which user a TCP socket of this machine belongs to, as Linux tells it.

The kernel is asked for one socket by its addresses (sock_diag(7)). The same is in /proc/net/tcp, but the kernel walks
its whole table of connections to write that file, which takes milliseconds.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
ANY_STATE = NO_COOKIE = 0xFFFFFFFF
TIMEOUT_S = 1.0
RESPONSE_BYTES = 8192
ROOT = 0

_HEADER = struct.Struct("=IHHII")
# Family, protocol, extensions, padding, states; then ports and addresses in network order, interface, cookie.
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_ADDRESS_BYTES = 16
_REST_OF_ID = struct.Struct("=III")
# The user and the inode, behind the header, four bytes of state, the id and three numbers.
_OWNER = struct.Struct("=II")
_OWNER_AT = _HEADER.size + 4 + _PORTS.size + 2 * _ADDRESS_BYTES + _REST_OF_ID.size + 12


def connection_owner(local: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    """The user whose socket is bound to `local` and connected to `remote`.

    None if this cannot be told, if there is no such socket, or if no process has it open any more.
    """
    return _find(local, (remote[0], remote[1]))


def listener_owner(local: tuple[Any, ...]) -> int | None:
    """The user whose socket accepts connections to an address, directly or by a wildcard."""
    return _find(local, ("::" if ":" in local[0] else "0.0.0.0", 0))  # noqa: S104 - nothing is bound


def can_tell_owners() -> bool:
    """Whether the system tells whose sockets there are, tried on one of our own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener_owner(listener.getsockname()) == os.geteuid()


def is_trusted(user: int | None) -> bool:
    """Whether a user may read what this process has. Root may in any case."""
    return user in (os.geteuid(), ROOT)


def _find(local: tuple[Any, ...], remote: tuple[str, int]) -> int | None:
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    addresses = [socket.inet_pton(family, host).ljust(_ADDRESS_BYTES, b"\0") for host in (local[0], remote[0])]
    wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, ANY_STATE) + _PORTS.pack(local[1], remote[1])
    wanted += b"".join(addresses) + _REST_OF_ID.pack(0, NO_COOKIE, NO_COOKIE)
    header = _HEADER.pack(_HEADER.size + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(getattr(socket, "AF_NETLINK", -1), socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(TIMEOUT_S)
            kernel.send(header + wanted)
            response = kernel.recv(RESPONSE_BYTES)
    except OSError:
        return None
    if _HEADER.unpack_from(response)[1] != SOCK_DIAG_BY_FAMILY:
        # There is no such socket.
        return None
    user, inode = _OWNER.unpack_from(response, _OWNER_AT)
    # Older kernels name root as the user of a socket that its process has closed. Such a socket has no inode.
    return int(user) if inode else None
