"""The ports of folding: the store and its export."""
