"""Rebuilding a cache: reuses parts of the previous cache, and detects changes of the sources."""
