"""SLO objectives in the sidecar: their status, SLO events, time slices and unseen models."""
