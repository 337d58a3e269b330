"""Reads the messages of each API and finds the facts that folding needs."""
