"""Work of commands that uses all processors."""
