"""What a message means for folding, in each API."""
