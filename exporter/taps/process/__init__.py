"""The process of the taps, its messages, and the side of the sidecar."""
