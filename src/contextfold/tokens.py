"""How many tokens a text counts for. Pure arithmetic; knows no tokenizer and no file."""

BYTES_PER_TOKEN = 4


def tokens_of(byte_count: int) -> int:
    """The v0 estimate: a token for every four UTF-8 bytes, begun ones included."""
    return -(-byte_count // BYTES_PER_TOKEN)
