"""Report what a live server can measure, and how to configure it; read a running sidecar."""
