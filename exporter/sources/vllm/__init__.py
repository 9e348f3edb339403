"""vLLM as a source."""
