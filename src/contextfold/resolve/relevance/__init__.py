"""Relevance search in a cache: indexes documents by sections and terms, and ranks sections for a question."""
