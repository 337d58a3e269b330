"""Commands that build caches and read them."""
