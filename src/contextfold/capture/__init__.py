"""What agent hosts say has happened, read from their own formats."""
