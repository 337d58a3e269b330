"""Implementations of the store; `fold.ports.store` defines the interface."""
