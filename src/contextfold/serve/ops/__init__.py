"""For operators: logs, metrics, tracing."""
