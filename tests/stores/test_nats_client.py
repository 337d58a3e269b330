"""The adapter of nats-py: fails here, by name, when the library moves a private name that it uses."""

from __future__ import annotations

import inspect

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from contextfold.stores.nats.connection import PRIVATE_WRITER


@pytest.mark.parametrize(
    ("method", "parameters"), [("_close", ["status", "do_cbs"]), ("_process_info", ["info", "initial_connection"])]
)
def test_nats_py_still_has_the_private_methods_that_the_adapter_overrides(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(Client, method)).parameters)[1:] == parameters


@pytest.mark.parametrize("name", ["_pending", "_pending_data_size", "_transport", "_current_server", "_server_info"])
def test_nats_py_still_has_the_private_attributes_that_the_adapter_uses(name: str) -> None:
    assert hasattr(Client(), name)


def test_its_transport_still_has_the_writer_that_the_adapter_aborts() -> None:
    assert hasattr(TcpTransport(), PRIVATE_WRITER)  # type: ignore[no-untyped-call]
