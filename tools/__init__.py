"""Maintenance scripts; not part of the distribution."""
