"""Pages rendered in headless Chromium; not part of ``make test``."""
