"""Prometheus text expositions: parsed, read incrementally, summed by model."""
