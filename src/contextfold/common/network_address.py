"""Network addresses: the daemon's URL, NATS servers, and the authority (`name:port`) of any URL.

An address that passes these checks is safe in JSON, in a shell command and in a request.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

DAEMON_URL = "http://localhost:9090"
MCP_PATH = "/mcp"
URL_MAX = 2_000
NATS_URL = "nats://localhost:4222"
NATS_SCHEMES = ("nats", "tls")
NATS_SERVERS_MAX = 16
NATS_PORT = 4222
DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
# The segments of a plain path, none of which consists of dots alone.
_PATH = re.compile(r"(?:/(?!\.+(?:/|\Z))[\w.~-]+)*/?", re.ASCII)


class BadAddress(ValueError):
    """The address cannot be used; the message says why."""


class Authority(NamedTuple):
    """The host, in lowercase and without brackets, and the port in a URL or a Host header."""

    host: str
    port: int | None


class Address(NamedTuple):
    """The daemon's address. `url` has no slash at its end, `path` is empty or begins with a slash."""

    url: str
    is_secure: bool
    name: str
    port: int
    path: str

    @property
    def mcp(self) -> str:
        return self.url + MCP_PATH

    @property
    def authority(self) -> str:
        """Name and port in the form of a Host header."""
        return urlsplit(self.url).netloc


class NatsServers(NamedTuple):
    """The servers of a NATS cluster. `urls` are without user and password."""

    urls: tuple[str, ...]
    user: str
    password: str

    def __repr__(self) -> str:
        return f"NatsServers(urls={self.urls!r})"


def parse_authority(text: str) -> Authority | None:
    """Parse `name`, `name:port`, `[address]` or `[address]:port`; None if the text has none of these forms."""
    if not _AUTHORITY.fullmatch(text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
        if text.startswith("["):
            IPv6Address(host)
    except ValueError:
        return None
    return Authority(host, port) if port != 0 else None


def split_url(text: str) -> SplitResult | None:
    """The parts of a URL. None if it has none, or characters that are not printable, which `urlsplit` would drop."""
    try:
        return urlsplit(text) if text.isprintable() and "://" in text else None
    except ValueError:
        return None


def parse_daemon_url(text: str) -> Address:
    """Parse the URL of a daemon or of its MCP endpoint."""
    if "@" in text:
        raise BadAddress("it has an @ in it; a name and a password do not belong there, use --token-variable NAME")
    parts = split_url(text)
    authority = parse_authority(parts.netloc) if parts else None
    if (
        len(text) > URL_MAX
        or parts is None
        or authority is None
        or parts.scheme not in DEFAULT_PORTS
        or not _PATH.fullmatch(parts.path)
        # Nothing follows the path, and the scheme is in lowercase.
        or text != f"{parts.scheme}://{parts.netloc}{parts.path}"
    ):
        raise BadAddress(f"it must be like {DAEMON_URL}: http or https, a name, a port, and at most a plain path")
    path = parts.path.removesuffix("/").removesuffix(MCP_PATH)
    port = authority.port or DEFAULT_PORTS[parts.scheme]
    return Address(f"{parts.scheme}://{parts.netloc}{path}", parts.scheme == "https", authority.host, port, path)


def parse_nats_servers(text: str) -> NatsServers:
    """Parse the servers of one cluster, separated by commas. Errors do not quote them, because of the password."""
    servers = [_parse_nats_server(part.strip()) for part in text.split(",")]
    if len(servers) > NATS_SERVERS_MAX or len(text) > URL_MAX:
        raise BadAddress(f"it names too much: {NATS_SERVERS_MAX} servers and {URL_MAX} characters at most")
    if len({url.partition(":")[0] for url, _ in servers}) > 1:
        raise BadAddress("it mixes nats:// and tls://; with tls:// on every server nothing is sent in the clear")
    users = {credentials for _, credentials in servers if credentials}
    if len(users) > 1:
        raise BadAddress("its servers name different users; they are one cluster, and have the same")
    user, _, password = users.pop().partition(":") if users else ("", "", "")
    try:
        user, password = unquote(user, errors="strict"), unquote(password, errors="strict")
    except UnicodeDecodeError:
        raise BadAddress("what is written as %XX before the @ is not UTF-8") from None
    return NatsServers(tuple(dict.fromkeys(url for url, _ in servers)), user, password)


def _parse_nats_server(text: str) -> tuple[str, str]:
    """A server's URL without user and password, and `user:password`."""
    scheme, _, rest = text.partition("://")
    credentials, at, address = rest.removesuffix("/").rpartition("@")
    authority = parse_authority(address)
    if scheme.lower() not in NATS_SCHEMES or authority is None:
        raise BadAddress(
            f"it must be like {NATS_URL}: nats or tls, a name and a port; more of them with commas between"
        )
    # `urlsplit` would end the host at a slash in the password, and the error would not say what is wrong.
    user, _, password = credentials.partition(":")
    if at and not (user and password and credentials.isprintable() and set("/?#@").isdisjoint(credentials)):
        raise BadAddress("before the @ it must have user:password, other characters than letters and digits as %XX")
    port = "" if authority.port else f":{NATS_PORT}"
    return f"{scheme.lower()}://{address}{port}", credentials


def is_variable(text: str) -> bool:
    """Whether this is a valid name of an environment variable in every shell."""
    return text.isascii() and text.isidentifier()
