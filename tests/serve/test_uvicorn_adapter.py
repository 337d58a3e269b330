"""The undocumented parts of uvicorn that `serve/http/uvicorn_adapter.py` uses still exist."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import h11
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

# Methods that the adapter overrides or calls, with their parameters.
METHODS: dict[Callable[..., Any], list[str]] = {
    H11Protocol.connection_made: ["self", "transport"],
    H11Protocol.connection_lost: ["self", "exc"],
    H11Protocol.data_received: ["self", "data"],
    H11Protocol.eof_received: ["self"],
    H11Protocol.on_response_complete: ["self"],
    H11Protocol.pause_writing: ["self"],
    H11Protocol.resume_writing: ["self"],
    H11Protocol.shutdown: ["self"],
    H11Protocol.timeout_keep_alive_handler: ["self"],
    H11Protocol.send_400_response: ["self", "msg"],
    Server.startup: ["self", "sockets"],
    Server.shutdown: ["self", "sockets"],
    Server.capture_signals: ["self"],
    Server.handle_exit: ["self", "sig", "frame"],
    Server.run: ["self", "sockets"],
}
CONNECTION_ATTRIBUTES = ("conn", "connections", "cycle", "loop", "transport")
CYCLE_ATTRIBUTES = ("response_complete", "response_started", "scope")
SERVER_ATTRIBUTES = ("server_state", "should_exit", "started")
SERVER_ATTRIBUTES_SET_LATER = ("lifespan", "servers")


def moved(name: str) -> str:
    return f"uvicorn {uvicorn.__version__} has no {name} any more: adapt serve/http/uvicorn_adapter.py"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_a_method_has_the_parameters_that_the_adapter_expects(method: Callable[..., Any]) -> None:
    if not method.__module__.startswith("uvicorn."):
        pytest.skip("another package that the tests load has replaced this method")
    assert list(inspect.signature(method).parameters) == METHODS[method], moved(method.__qualname__)


def test_the_attributes_that_the_adapter_reads_are_there() -> None:
    async def check() -> None:
        config = uvicorn.Config(lambda: None, loop="asyncio", log_config=None)
        state = ServerState()
        connection = H11Protocol(config, state, {})
        for name in CONNECTION_ATTRIBUTES:
            assert hasattr(connection, name), moved(f"H11Protocol.{name}")
        assert connection.connections is state.connections, moved("ServerState.connections")
        assert isinstance(state.tasks, set), moved("ServerState.tasks")
        assert isinstance(connection.conn, h11.Connection), moved("H11Protocol.conn of type h11.Connection")
        server = Server(config)
        for name in SERVER_ATTRIBUTES:
            assert hasattr(server, name), moved(f"Server.{name}")

    asyncio.run(check())
    source = inspect.getsource(Server)
    for name in SERVER_ATTRIBUTES_SET_LATER:
        assert f"self.{name}" in source, moved(f"Server.{name}")
    source = inspect.getsource(RequestResponseCycle)
    for name in CYCLE_ATTRIBUTES:
        assert f"self.{name} = " in source, moved(f"RequestResponseCycle.{name}")


def test_every_attribute_of_uvicorn_that_the_adapter_names_is_checked_here() -> None:
    from contextfold.serve.http import uvicorn_adapter

    inherited = set(dir(H11Protocol)) | set(dir(Server))
    overridden = {
        name
        for kind in (uvicorn_adapter.HttpConnection, uvicorn_adapter.DaemonServer)
        for name in vars(kind)
        if name in inherited and not name.startswith("__")
    }
    assert overridden <= {method.__name__ for method in METHODS}
