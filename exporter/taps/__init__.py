"""Taps: where the bytes of streams come from, by proxy or by packet capture."""
