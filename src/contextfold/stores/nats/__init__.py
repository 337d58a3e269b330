"""The store for many daemons: NATS JetStream."""
