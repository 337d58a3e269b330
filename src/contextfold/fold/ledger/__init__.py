"""What requests to a model cost, and what folding saved or cost in them."""
