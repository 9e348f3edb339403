"""What the sidecar serves and pushes: metrics, readiness, status page, gateway gauges, OTLP."""
