"""The relevance index: its bytes, its files, and how it is written."""
