"""Recall: ranks folded work and left-out results for a question, within a budget. Pure."""
