"""Taps: read the bytes of streams, by proxy or by packet capture."""
