"""What texts are compared by: words, stems, the terms of a question, the arithmetic of scores, estimated tokens."""
