"""Requests to models, folded on their way to the provider."""
