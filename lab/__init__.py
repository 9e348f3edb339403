"""The lab: a real Triton with a simulated engine, load, Prometheus."""
