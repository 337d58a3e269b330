"""Rate limits of owners, and the rules for Host and Origin headers. Pure: the time is a parameter."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable

from contextfold.common.network_address import parse_authority
from contextfold.settings import SettingsError

# At most this many owners are remembered. The one that has not called for the longest time is dropped first.
OWNERS_MAX = 10_000
# The length of the longest DNS name with a port.
AUTHORITY_MAX_CHARS = 260
ORIGIN_SCHEMES = ("http", "https")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Buckets:
    """A token bucket for each owner: the remaining calls, and the time of the last update.

    `burst` is the number of calls that are accepted at once after a pause.
    """

    def __init__(self, per_second: float, burst: int, *, owners_max: int = OWNERS_MAX) -> None:
        if per_second <= 0 or burst < 1 or owners_max < 1:
            raise ValueError("a limit lets something through")
        self.per_second, self.burst, self._owners_max = per_second, burst, owners_max
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, owner: str, now_s: float) -> float:
        """Count one call: 0 if it is accepted, else the number of seconds to wait. A refused call is not counted."""
        left, then_s = self._levels.get(owner, (float(self.burst), now_s))
        left = min(float(self.burst), left + max(0.0, now_s - then_s) * self.per_second)
        wait_s = 0.0 if left >= 1 else (1 - left) / self.per_second
        self._levels[owner] = (left if wait_s else left - 1, max(now_s, then_s))
        self._levels.move_to_end(owner)
        if len(self._levels) > self._owners_max:
            self._levels.popitem(last=False)
        return wait_s


class HostRule:
    """Decides which Host and Origin headers are accepted.

    A web page that rebinds its own DNS name to the daemon's address still sends that name. So names must be known. An
    address in Host cannot be rebound, so any address is accepted if the daemon listens beyond this machine.
    """

    def __init__(self, listening_on: str, more: Iterable[str] = ()) -> None:
        self._known = set(LOOPBACK_NAMES)
        self._any_address = not is_loopback(listening_on)
        for name in (listening_on, *more):
            host = _host(name.lower()) or _host(f"[{name.lower()}]")
            if host is None:
                raise SettingsError(f"{name[:64]!r} is no host's name or address; give one such as ctx.example.org")
            self._known.add(host)

    def host_of(self, value: str) -> str | None:
        """The name in a Host header; None if it is not accepted. Any port is, because proxies and tunnels change it."""
        host = _host(value.lower())
        if host is None or host in self._known or (self._any_address and _address(host)):
            return host
        return None

    def is_origin(self, value: str, host: str) -> bool:
        """Whether a page of this origin may call the daemon at `host`. A page at an unknown address may not."""
        scheme, _, authority = value.lower().partition("://")
        origin = _host(authority) if scheme in ORIGIN_SCHEMES else None
        return origin is not None and (origin in self._known or origin == host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than localhost may lead anywhere."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _host(authority: str) -> str | None:
    """The name in `name` or `name:port`. IPv6 addresses are normalised."""
    machine = parse_authority(authority) if len(authority) <= AUTHORITY_MAX_CHARS else None
    if machine is None or machine.host[-1] in ".-":
        return None
    return f"[{_address(machine.host)}]" if ":" in machine.host else machine.host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
