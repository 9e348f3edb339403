"""The sources that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.config import Config
from exporter.sources import Source
from exporter.sources.fetch import Limits
from exporter.sources.triton import TritonSource


def configured(config: Config) -> Iterator[Source]:
    """Make every source; none is opened yet."""
    limits = Limits(config.timeout, config.max_bytes)
    if config.triton or config.triton_metrics:
        yield TritonSource(
            config.triton or None,
            config.triton_metrics or None,
            models=config.model,
            limits=limits,
        )
