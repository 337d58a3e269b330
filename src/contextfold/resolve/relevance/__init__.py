"""Relevance search over a cache: documents become sections, terms and postings; a question becomes ranked sections."""
