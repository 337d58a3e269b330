"""Timeouts of seconds instead of minutes, for a daemon.

They are not shorter, because well-behaved clients must meet them on a busy machine too.
"""

from __future__ import annotations

import functools

from contextfold import daemon
from contextfold.serve.http.capacity import RequestLimits
from contextfold.serve.proxy import endpoint as proxy
from contextfold.serve.proxy import upstream


def shorten_timeouts() -> None:
    upstream.READ_S = upstream.WRITE_S = 5.0
    proxy.EXCHANGE_S = 15.0
    vars(daemon)["RequestLimits"] = functools.partial(
        RequestLimits, body_timeout_s=3.0, proxied_body_timeout_s=5.0, response_timeout_s=3.0
    )
