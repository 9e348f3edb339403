"""SGLang as a source."""
