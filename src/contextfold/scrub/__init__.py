"""Takes secrets out of text before it is stored, logged or sent on."""
