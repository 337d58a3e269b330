"""The HTTP client for commands that use a running daemon. Knows sockets and JSON, no session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from contextfold.cli.daemon.request import BadResponse, daemon_address, request
from contextfold.common.canonical import parse_json
from contextfold.common.network_address import DAEMON_URL, Address

TIMEOUT_S = 2.0
RESPONSE_BYTES_MAX = 8 << 20
HTTP_OK, HTTP_UNAUTHORIZED = 200, 401
URL_VARIABLE = "CONTEXT_URL"


class DaemonSilent(Exception):
    """No contextfold daemon answers at the address; the message says why."""


class DaemonClient:
    """A daemon at an address."""

    def __init__(self, address: Address, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever JSON is there
        """Get the JSON at a path. Raises DaemonSilent if that fails."""
        status, body = self._request(path)
        if status == HTTP_UNAUTHORIZED:
            raise DaemonSilent(f"the daemon at {self.address.url} asks for a token: add --token-variable NAME")
        try:
            value = parse_json(body)
        except (ValueError, RecursionError):
            value = None
        if status != HTTP_OK or value is None:
            raise DaemonSilent(f"what answers at {self.address.url} is not this version's daemon (HTTP {status})")
        return value

    def status(self) -> Mapping[str, Any]:
        """Version, start and recent activity of the daemon."""
        value = self.get("/v1/daemon")
        if not isinstance(value, dict) or "version" not in value:
            raise DaemonSilent(f"what answers at {self.address.url} is not a contextfold daemon")
        return value

    def is_ready(self) -> bool:
        """Whether the daemon's store accepts commits."""
        return self._request("/readyz")[0] == HTTP_OK

    def _request(self, path: str) -> tuple[int, bytes]:
        try:
            return request(self.address, path, self._token, timeout_s=self._timeout_s, bytes_max=RESPONSE_BYTES_MAX)
        except (OSError, BadResponse) as problem:
            detail = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            raise DaemonSilent(f"nothing answers at {self.address.url} ({detail})") from None


def client_from(values: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> DaemonClient:
    """A client of the daemon at --url, else at CONTEXT_URL, else at the default address."""
    address = daemon_address(values.get("url") or os.environ.get(URL_VARIABLE) or DAEMON_URL)
    return DaemonClient(address, os.environ.get(values.get("token-variable", ""), ""), timeout_s=timeout_s)
