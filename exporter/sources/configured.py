"""The sources that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exporter.config import Config
from exporter.sources import Source
from exporter.sources.fetch import Limits
from exporter.sources.traces import TracesSource
from exporter.sources.triton import TritonSource
from exporter.sources.trtllm_iterations import IterationsFileSource, IterationsSource
from exporter.sources.trtllm_serve import TrtllmServeSource
from exporter.sources.vllm_server import VllmSource
from slos.model import Service
from slos.thresholds import thresholds


def configured(config: Config, services: Iterable[Service] = ()) -> Iterator[Source]:
    """Make every source; none is opened yet.  Thresholds of ``services`` become bucket edges."""
    limits = Limits(config.timeout, config.max_bytes)
    edges = thresholds(services)
    if config.triton or config.triton_metrics:
        yield TritonSource(
            config.triton or None,
            config.triton_metrics or None,
            models=config.model,
            limits=limits,
        )
    if config.trtllm:
        yield TrtllmServeSource(
            config.trtllm, requests=config.trtllm_requests, thresholds=edges, limits=limits
        )
        yield IterationsSource(config.trtllm, thresholds=edges, limits=limits)
    if config.trtllm_iterations:
        yield IterationsFileSource(config.trtllm_iterations, thresholds=edges, limits=limits)
    if config.vllm:
        yield VllmSource(config.vllm, limits=limits)
    if config.otlp_traces:
        yield TracesSource(
            config.otlp_traces,
            config.otlp_traces_forward,
            thresholds=edges,
            models=config.model,
            triton=config.triton,
            alone=not (config.triton or config.triton_metrics),
            limits=limits,
        )
