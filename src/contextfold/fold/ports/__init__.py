"""The ports of folding: the store, its export, and the records of proxied conversations."""
