"""Documents become a cache, a cache and a question become a selection."""
