"""Folding: sessions, branches, and the folded context."""
