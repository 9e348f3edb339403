"""Settings of the sidecar: one table of options, four places to set them.

A setting comes from a flag, an environment variable, a YAML file or its default, the first of these
that has it.  Its name is the same everywhere: ``--stale-after``, ``TOKENSLO_STALE_AFTER``,
``stale-after``.
"""

from __future__ import annotations

from exporter.settings.loading import load_settings
from exporter.settings.options import OPTIONS, PREFIX, SOURCES
from exporter.settings.values import ExpectedModel, Settings

__all__ = ["OPTIONS", "PREFIX", "SOURCES", "ExpectedModel", "Settings", "load_settings"]
