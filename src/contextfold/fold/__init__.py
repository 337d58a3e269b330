"""Session → branches → folded context."""
