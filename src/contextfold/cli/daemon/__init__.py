"""Commands that run and administer the daemon."""
