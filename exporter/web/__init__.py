"""Outputs of the sidecar: metrics, readiness, status page, gateway gauges, OTLP."""
