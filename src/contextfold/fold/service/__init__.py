"""The services of folding: they scrub, decide and store for each tool, report and view of a session."""
