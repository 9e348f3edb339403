"""The proving ground: a real Triton with a simulated engine, load, Prometheus."""
