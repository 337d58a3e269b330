"""Agent programs: what we write into their files, and what their hooks send."""
