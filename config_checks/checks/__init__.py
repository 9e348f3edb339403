"""The checks: one pure function each, over a parsed configuration."""
