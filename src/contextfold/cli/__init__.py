"""The `context` command: argv in, bytes and an exit code out."""
