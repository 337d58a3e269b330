"""Implementations of the store; `fold.store` defines the interface."""
