"""Building again: what a new cache may take over from the one before it, and when a folder has changed."""
