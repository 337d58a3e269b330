"""Building blocks that know nothing of the product: records, canonical JSON, Unicode, tokens, addresses."""
