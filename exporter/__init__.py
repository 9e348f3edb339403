"""The sidecar: reads what a server publishes and serves token-level metrics about it."""
