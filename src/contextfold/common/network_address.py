"""Addresses as a person gives them, the daemon's and NATS servers': checked once, then known to be safe in JSON, in a
shell's line and in a request. Knows no socket and no host's file.

Read by hand: `context hook` runs after every tool call, and regular expressions would be a fifth of its time.
"""

from __future__ import annotations

from contextfold.common.record import Record

DAEMON_URL = "http://localhost:9090"
MCP_PATH = "/mcp"
PORT_MAX = 65_535
URL_MAX = 2_000
NATS_URL = "nats://localhost:4222"
NATS_SCHEMES = ("nats", "tls")
NATS_SERVERS_MAX = 16
_NATS_PORT = ":4222"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_NAME = _LETTERS | _DIGITS | frozenset("_.-")
_BRACKETED = frozenset("ABCDEFabcdef:.") | _DIGITS  # an address of IPv6
_SEGMENT = _NAME | {"~"}


class BadAddress(ValueError):
    """What was given cannot be used; says why."""


class Address(Record):
    url: str  # without a slash at its end
    is_secure: bool
    name: str  # of the machine, as a resolver takes it
    port: int
    path: str  # empty, or begins with a slash

    @property
    def mcp(self) -> str:
        return self.url + MCP_PATH

    @property
    def authority(self) -> str:
        """Name and port, as a request names them."""
        return self.url.split("/")[2]


def address_from(text: str) -> Address:
    """The daemon at a URL, be it its root or its MCP endpoint."""
    if "@" in text:
        raise BadAddress("it has an @ in it; a name and a password do not belong there, use --token-variable NAME")
    scheme, _, rest = text.partition("://")
    authority, slash, below = rest.removesuffix("/").partition("/")
    name, port = _split(authority)
    segments = below.split("/") if slash else []
    if (
        len(text) > URL_MAX
        or scheme not in _DEFAULT_PORTS
        or not _is_name(name)
        or not _is_port(port)
        or not all(segment.strip(".") and _SEGMENT.issuperset(segment) for segment in segments)
    ):
        raise BadAddress(f"it must be like {DAEMON_URL}: http or https, a name, a port, and at most a plain path")
    path = "".join("/" + segment for segment in segments).removesuffix(MCP_PATH)
    number = int(port.removeprefix(":") or _DEFAULT_PORTS[scheme])
    return Address(f"{scheme}://{name}{port}{path}", scheme == "https", name.strip("[]"), number, path)


class NatsServers(Record):
    urls: tuple[str, ...]  # scheme, name and port of each, and nobody's name or password
    user: str
    password: str

    def __repr__(self) -> str:
        return f"NatsServers(urls={self.urls!r})"


def nats_servers_from(text: str) -> NatsServers:
    """Servers of one cluster, commas between. What is wrong is told without a word of it: one may be a password."""
    parts = [_nats_server(part) for part in text.split(",")]
    if len(parts) > NATS_SERVERS_MAX or len(text) > URL_MAX:
        raise BadAddress(f"it names too much: {NATS_SERVERS_MAX} servers and {URL_MAX} characters at most")
    if len({url.partition(":")[0] for url, _ in parts}) > 1:
        raise BadAddress("it mixes nats:// and tls://; with tls:// on every server nothing is sent in the clear")
    told = {whose for _, whose in parts if whose}
    if len(told) > 1:
        raise BadAddress("its servers name different users; they are one cluster, and have the same")
    user, _, password = told.pop().partition(":") if told else ("", "", "")
    return NatsServers(tuple(dict.fromkeys(url for url, _ in parts)), _decoded(user), _decoded(password))


def _nats_server(text: str) -> tuple[str, str]:
    """A server's URL without user and password, and those."""
    scheme, _, rest = text.strip().partition("://")
    whose, at, authority = rest.removesuffix("/").rpartition("@")
    name, port = _split(authority)
    if scheme.lower() not in NATS_SCHEMES or not _is_name(name) or not _is_port(port):
        raise BadAddress(
            f"it must be like {NATS_URL}: nats or tls, a name and a port; more of them with commas between"
        )
    user, _, password = whose.partition(":")
    if at and not (user and password and whose.isprintable() and not set("/?#@") & set(whose)):
        raise BadAddress("before the @ it must have user:password, other characters than letters and digits as %XX")
    return f"{scheme.lower()}://{name}{port or _NATS_PORT}", whose


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise BadAddress("what is written as %XX before the @ is not UTF-8") from None


def is_variable(text: str) -> bool:
    """Whether every shell takes this for the name of a variable."""
    return bool(text) and (_LETTERS | _DIGITS | {"_"}).issuperset(text) and text[0] not in _DIGITS


def _split(authority: str) -> tuple[str, str]:
    """A machine's name, and its port with the colon before it."""
    end = authority.find("]") + 1 or authority.find(":")
    return (authority[:end], authority[end:]) if end >= 0 else (authority, "")


def _is_name(name: str) -> bool:
    if name.startswith("["):
        return name.endswith("]") and len(name) > 2 and _BRACKETED.issuperset(name[1:-1])  # noqa: PLR2004 - brackets
    return _NAME.issuperset(name) and name[:1] not in ("", ".", "-")


def _is_port(port: str) -> bool:
    digits = port.removeprefix(":")
    if not port:
        return True
    return len(digits) in range(1, 6) and _DIGITS.issuperset(digits) and 1 <= int(digits) <= PORT_MAX
