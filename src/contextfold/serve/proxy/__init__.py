"""The proxy: folds requests to models and forwards them to the provider."""
