"""The optional libraries, and the extra of the distribution that installs each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

EXTRAS: Mapping[str, str] = {
    "_jsonnet": "jsonnet",
    "bcrypt": "exporter",
    "google": "otlp",
    "grafanalib": "generate",
    "grpc": "grpc",
    "hpack": "exporter",
    "markdown_it": "generate",
    "opentelemetry": "otlp",
    "prometheus_client": "exporter",
    "requests": "otlp",
    "rich": "terminal",
    "tritonclient": "grpc",
    "uvloop": "exporter",
}
"""Extra by the name that is imported."""


def require(*extras: str) -> None:
    """Raise ModuleNotFoundError for the first library of the extras that is not installed."""
    for name, extra in EXTRAS.items():
        if extra in extras and find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def missing_extra(error: ModuleNotFoundError) -> str:
    """Return the extra that installs the missing module; empty if none does."""
    return EXTRAS.get((error.name or "").partition(".")[0], "")
