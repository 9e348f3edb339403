"""The tap process, its client in the sidecar, and the messages between them."""
