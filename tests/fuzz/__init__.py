"""Fuzz targets: every parser of untrusted input, on mutations of a corpus."""
