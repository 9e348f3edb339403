"""Triton as a source: metrics, HTTP API, and the backends whose metrics it serves."""
