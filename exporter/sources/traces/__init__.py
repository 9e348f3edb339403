"""Triton's own trace spans as a source of request timings."""
