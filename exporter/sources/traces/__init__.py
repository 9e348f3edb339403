"""Triton's own trace spans: export requests in, the timings of single requests out; no I/O."""
