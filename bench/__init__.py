"""Every speed figure the product claims, measured beside its yardstick in one run."""
