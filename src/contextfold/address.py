"""A daemon's address as a person gives it: checked once, then known to be safe in JSON, in a shell's line and in a
request. Knows no socket and no host's file.

Read by hand: `context hook` runs after every tool call, and regular expressions would be a fifth of its time.
"""

from __future__ import annotations

from contextfold.record import Record

DAEMON_URL = "http://localhost:9090"
MCP_PATH = "/mcp"
PORT_MAX = 65_535
URL_MAX = 2_000
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
