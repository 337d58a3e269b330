"""Parses network addresses: the daemon's URL, NATS servers, and the authority (`name:port`) of any URL.

An address that passes these checks is safe in JSON, in a shell command and in a request. The module uses no regular
expressions: `context hook` runs after every tool call, and regular expressions would take a fifth of its time.
"""

from __future__ import annotations

from typing import NamedTuple

DAEMON_URL = "http://localhost:9090"
MCP_PATH = "/mcp"
PORT_MAX, PORT_DIGITS = 65_535, 5
URL_MAX = 2_000
NATS_URL = "nats://localhost:4222"
NATS_SCHEMES = ("nats", "tls")
NATS_SERVERS_MAX = 16
_NATS_PORT = ":4222"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_NAME = _LETTERS | _DIGITS | frozenset("_.-")
# The characters of an IPv6 address.
_BRACKETED = frozenset("ABCDEFabcdef:.") | _DIGITS
_SEGMENT = _NAME | {"~"}


class BadAddress(ValueError):
    """The address cannot be used; the message says why."""


class Authority(NamedTuple):
    """Name and port in a URL or a Host header. An IPv6 address has its brackets."""

    name: str
    port: int | None


class Address(NamedTuple):
    """The daemon's address.

    `url` has no slash at its end, `path` is empty or begins with a slash. `name` has no brackets.
    """

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
        return self.url.split("/")[2]


def address_from(text: str) -> Address:
    """Parse the URL of a daemon or of its MCP endpoint."""
    if "@" in text:
        raise BadAddress("it has an @ in it; a name and a password do not belong there, use --token-variable NAME")
    scheme, _, rest = text.partition("://")
    authority, slash, below = rest.removesuffix("/").partition("/")
    machine = authority_from(authority)
    segments = below.split("/") if slash else []
    if (
        len(text) > URL_MAX
        or scheme not in _DEFAULT_PORTS
        or machine is None
        or not all(segment.strip(".") and _SEGMENT.issuperset(segment) for segment in segments)
    ):
        raise BadAddress(f"it must be like {DAEMON_URL}: http or https, a name, a port, and at most a plain path")
    path = "".join("/" + segment for segment in segments).removesuffix(MCP_PATH)
    port = machine.port or _DEFAULT_PORTS[scheme]
    return Address(f"{scheme}://{authority}{path}", scheme == "https", machine.name.strip("[]"), port, path)


class NatsServers(NamedTuple):
    """The servers of a NATS cluster. `urls` are without user and password."""

    urls: tuple[str, ...]
    user: str
    password: str

    def __repr__(self) -> str:
        return f"NatsServers(urls={self.urls!r})"


class NatsOptions(NamedTuple):
    """The servers of a cluster, without users and passwords in their URLs, and how to connect to them.

    The fields from `prefix` on are the settings that begin with `nats-`. With 0 replicas new streams get one, and
    existing streams stay as they are.
    """

    servers: tuple[str, ...]
    prefix: str = "contextfold"
    domain: str = ""
    replicas: int = 0
    creds: str = ""
    nkey: str = ""
    user: str = ""
    password: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def __repr__(self) -> str:
        """A representation for logs and traces, without credentials."""
        return f"NatsOptions(servers={self.servers!r}, prefix={self.prefix!r})"

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls_ca) or any(server.startswith("tls://") for server in self.servers)


def nats_servers_from(text: str) -> NatsServers:
    """Parse the servers of one cluster, separated by commas. Errors do not quote them, because of the password."""
    parts = [_nats_server(part) for part in text.split(",")]
    if len(parts) > NATS_SERVERS_MAX or len(text) > URL_MAX:
        raise BadAddress(f"it names too much: {NATS_SERVERS_MAX} servers and {URL_MAX} characters at most")
    if len({url.partition(":")[0] for url, _ in parts}) > 1:
        raise BadAddress("it mixes nats:// and tls://; with tls:// on every server nothing is sent in the clear")
    users = {user for _, user in parts if user}
    if len(users) > 1:
        raise BadAddress("its servers name different users; they are one cluster, and have the same")
    user, _, password = users.pop().partition(":") if users else ("", "", "")
    return NatsServers(tuple(dict.fromkeys(url for url, _ in parts)), _decoded(user), _decoded(password))


def _nats_server(text: str) -> tuple[str, str]:
    """A server's URL without user and password, and `user:password`."""
    scheme, _, rest = text.strip().partition("://")
    credentials, at, authority = rest.removesuffix("/").rpartition("@")
    machine = authority_from(authority)
    if scheme.lower() not in NATS_SCHEMES or machine is None:
        raise BadAddress(
            f"it must be like {NATS_URL}: nats or tls, a name and a port; more of them with commas between"
        )
    user, _, password = credentials.partition(":")
    if at and not (user and password and credentials.isprintable() and not set("/?#@") & set(credentials)):
        raise BadAddress("before the @ it must have user:password, other characters than letters and digits as %XX")
    return f"{scheme.lower()}://{authority if machine.port else authority + _NATS_PORT}", credentials


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise BadAddress("what is written as %XX before the @ is not UTF-8") from None


def is_variable(text: str) -> bool:
    """Whether this is a valid name of an environment variable in every shell."""
    return bool(text) and (_LETTERS | _DIGITS | {"_"}).issuperset(text) and text[0] not in _DIGITS


def authority_from(text: str) -> Authority | None:
    """Parse `name`, `name:port`, `[address]` or `[address]:port`; None if the text has none of these forms."""
    end = text.find("]") + 1 or text.find(":")
    name, port = (text[:end], text[end:]) if end >= 0 else (text, "")
    if not _is_name(name):
        return None
    if not port:
        return Authority(name, None)
    digits = port[1:]
    if port[0] != ":" or len(digits) not in range(1, PORT_DIGITS + 1) or not _DIGITS.issuperset(digits):
        return None
    return Authority(name, int(digits)) if 1 <= int(digits) <= PORT_MAX else None


def _is_name(name: str) -> bool:
    if name.startswith("["):
        return name.endswith("]") and len(name) > len("[]") and _BRACKETED.issuperset(name[1:-1])
    return _NAME.issuperset(name) and name[:1] not in ("", ".", "-")
