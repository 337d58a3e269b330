"""Recall: what was folded or left out, as documents that a question finds again within a budget. Pure."""
