"""Rebuilding a cache: reuses parts of the previous cache, takes its place, and detects changes of the sources."""
