"""Settings of the sidecar, from flags, environment variables, a YAML file and defaults.

The first of these that sets a value wins.  A setting has the same name in each: ``--stale-after``,
``TOKENSLO_STALE_AFTER``, ``stale-after``.
"""

from __future__ import annotations

from exporter.settings.loading import load_settings
from exporter.settings.options import OPTIONS, PREFIX, SOURCES
from exporter.settings.values import ExpectedModel, Settings

__all__ = ["OPTIONS", "PREFIX", "SOURCES", "ExpectedModel", "Settings", "load_settings"]
