"""The tests, in folders that mirror those of src/contextfold."""
