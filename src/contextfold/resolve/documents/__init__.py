"""Which files of a folder become documents, and the text that is stored of each. Pure."""
