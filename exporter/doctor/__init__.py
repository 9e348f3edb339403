"""The doctor: signals that a live server provides, its configuration, and a sidecar client."""
