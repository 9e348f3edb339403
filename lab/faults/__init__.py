"""The fault matrix: faults around the sidecar and of its processes, and their effects."""
