"""What the sidecar can read: one file per thing read; bytes in, readings out."""
