"""Orders scrubbing, deciding and storing for each tool, each report and each view of a session."""
