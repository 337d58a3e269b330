"""Measures every speed figure that the product claims, each next to its yardstick."""
