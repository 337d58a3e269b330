"""`context fold …`: sessions on a terminal."""
