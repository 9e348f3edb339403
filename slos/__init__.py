"""The SLO language: signals, SLO files, indicators, windows and burn-rate arithmetic."""
