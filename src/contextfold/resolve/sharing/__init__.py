"""A cache as one file, for sharing."""
