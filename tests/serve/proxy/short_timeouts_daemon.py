"""Timeouts of seconds instead of minutes, for a daemon.

They are not shorter, because well-behaved clients must meet them on a busy machine too.
"""

from __future__ import annotations

import functools

from contextfold import daemon as composition
from contextfold.serve.http import exchange
from contextfold.serve.http import uvicorn_adapter as daemon
from contextfold.serve.proxy import endpoint as proxy
from contextfold.serve.proxy import upstream


def shorten_timeouts() -> None:
    upstream.READ_S = upstream.WRITE_S = 5.0
    proxy.EXCHANGE_S = 15.0
    daemon.STALLED_S = daemon.HEAD_TIMEOUT_S = 3.0
    vars(composition)["RequestLimits"] = functools.partial(
        exchange.RequestLimits, body_timeout_s=3.0, proxied_body_timeout_s=5.0
    )
