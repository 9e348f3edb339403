"""Lint checks by subject."""
