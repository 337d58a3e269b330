"""The adapter of nats-py: fails here, by name, when the library moves a private name that it uses."""

from __future__ import annotations

from contextfold.stores.nats.wire.client import moved_names


def test_nats_py_still_has_every_private_name_that_the_adapter_uses() -> None:
    moved = moved_names()
    assert not moved, f"nats-py no longer has {', '.join(moved)}: adapt contextfold/stores/nats/client.py"
