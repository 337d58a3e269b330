"""What folding needs from outside: the store, its export, and what is remembered of proxied conversations."""
