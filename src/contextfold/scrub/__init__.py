"""Redacts secrets in text before it is stored, logged or forwarded."""
