"""SLO objectives inside the sidecar: their status, SLO events, time slices and unseen models."""
