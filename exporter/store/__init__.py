"""The current state of every signal, made from snapshots of the sources."""
