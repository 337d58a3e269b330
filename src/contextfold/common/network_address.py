"""The daemon's URL, and the authority (`name:port`) of any URL.

An address that passes these checks is safe in JSON, in a shell command and in a request.
"""

import re
from typing import NamedTuple

DAEMON_URL = "http://localhost:9090"
MCP_PATH = "/mcp"
URL_MAX = 2_000
PORT_MAX = 65_535
DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?:(\w[\w.-]*)|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?", re.ASCII)
# A plain path: no segment of it consists of dots alone, and nothing follows it.
_DAEMON_URL = re.compile(r"(https?)://([^/]+)((?:/(?!\.+(?:/|\Z))[\w.~-]+)*)/?", re.ASCII)


class BadAddress(ValueError):
    """The address cannot be used; the message says why."""


class Authority(NamedTuple):
    """The host, in lowercase and without brackets, and the port in a URL or a Host header."""

    host: str
    port: int | None


class Address(NamedTuple):
    """The daemon's address. `url` has no slash at its end, `path` is empty or begins with a slash.

    `authority` is the name and the port in the form of a Host header.
    """

    url: str
    is_secure: bool
    authority: str
    name: str
    port: int
    path: str

    @property
    def mcp(self) -> str:
        return self.url + MCP_PATH


def parse_authority(text: str) -> Authority | None:
    """Parse `name`, `name:port`, `[address]` or `[address]:port`; None if the text has none of these forms."""
    found = _AUTHORITY.fullmatch(text)
    if found is None or (found[2] and not _is_ipv6(found[2])):
        return None
    port = int(found[3]) if found[3] else None
    if port is not None and not 0 < port <= PORT_MAX:
        return None
    return Authority((found[1] or found[2]).lower(), port)


def _is_ipv6(text: str) -> bool:
    # A hook reads an address each time, and it is seldom one of these.
    from ipaddress import IPv6Address

    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def parse_daemon_url(text: str) -> Address:
    """Parse the URL of a daemon or of its MCP endpoint."""
    if "@" in text:
        raise BadAddress("it has an @ in it; a name and a password do not belong there, use --token-variable NAME")
    found = _DAEMON_URL.fullmatch(text) if len(text) <= URL_MAX else None
    authority = parse_authority(found[2]) if found else None
    if found is None or authority is None:
        raise BadAddress(f"it must be like {DAEMON_URL}: http or https, a name, a port, and at most a plain path")
    scheme, netloc, path = found[1], found[2], found[3].removesuffix(MCP_PATH)
    port = authority.port or DEFAULT_PORTS[scheme]
    return Address(f"{scheme}://{netloc}{path}", scheme == "https", netloc, authority.host, port, path)


def is_variable(text: str) -> bool:
    """Whether this is a valid name of an environment variable in every shell."""
    return text.isascii() and text.isidentifier()
