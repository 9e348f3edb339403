"""The version of the distribution, without importlib.metadata, which loads 1.3 MiB of modules."""

from __future__ import annotations

VERSION = "0.1.0"
"""The same as in ``pyproject.toml``."""
