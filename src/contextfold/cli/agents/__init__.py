"""Commands that connect agent programs to the daemon."""
