"""The connection to NATS: streams, subjects, records and chunks on the wire."""
