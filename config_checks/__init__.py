"""Check the configuration of LLM servers: Triton repositories, LLM options, Kubernetes objects."""
