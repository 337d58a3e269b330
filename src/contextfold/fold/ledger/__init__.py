"""The ledger: the cost of requests to a model, and the savings or costs of folding."""
