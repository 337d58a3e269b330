"""The relevance index: its format, its files, and its writer."""
