"""Words, stems, the terms of a question, the arithmetic of scores, and estimates of tokens."""
