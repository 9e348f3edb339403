"""Numbers and schemas of the Kubernetes manifests in ``deploy/``."""
