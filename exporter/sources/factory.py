"""Create the sources that the settings name, importing only their modules, which hold memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from exporter.genai import PROFILES
from exporter.recording.goodput import goodput_objectives
from exporter.recording.label_limiter import OTHER
from exporter.settings import Settings
from exporter.settings.listeners import listener_access
from exporter.sources import Source
from exporter.sources.probe import ID
from exporter.sources.served_models import ServedModels
from exporter.sources.tap_source import TapSource
from exporter.taps.process.child_process import TapProcess
from exporter.taps.process.messages import TapSettings
from promql.http_client import FetchLimits
from slos.model import Service
from slos.prompt_classes import shared_classes
from slos.signals import TENANT
from slos.thresholds import thresholds


def configured(config: Settings, services: Sequence[Service] = ()) -> Iterator[Source]:
    """Yield every source, unopened; thresholds of ``services`` become bucket boundaries."""
    limits = FetchLimits(config.timeout, config.max_bytes)
    boundaries = thresholds(services)
    if config.triton or config.triton_metrics:
        from exporter.sources.triton.triton_source import TritonSource

        yield TritonSource(
            config.triton or None,
            config.triton_metrics or None,
            models=config.model,
            limits=limits,
        )
    if config.trtllm:
        from exporter.sources.trtllm.iterations_source import IterationsSource
        from exporter.sources.trtllm.trtllm_serve import TrtllmServeSource

        yield TrtllmServeSource(
            config.trtllm, requests=config.trtllm_requests, thresholds=boundaries, limits=limits
        )
        yield IterationsSource(config.trtllm, thresholds=boundaries, limits=limits)
    if config.trtllm_iterations:
        from exporter.sources.trtllm.iterations_source import IterationsFileSource

        yield IterationsFileSource(config.trtllm_iterations, thresholds=boundaries, limits=limits)
    if config.vllm:
        from exporter.sources.vllm.vllm_source import VllmSource

        yield VllmSource(config.vllm, limits=limits)
    if config.sglang:
        from exporter.sources.sglang.sglang_source import SglangSource

        yield SglangSource(config.sglang, limits=limits)
    if config.otlp_traces:
        from exporter.sources.traces.traces_source import TracesSource

        yield TracesSource(
            config.otlp_traces,
            config.otlp_traces_forward,
            thresholds=boundaries,
            models=config.model,
            triton=config.triton,
            alone=not (config.triton or config.triton_metrics),
            limits=limits,
            access=listener_access(config, config.otlp_traces),
        )
    if config.tap:
        # Last: other sources may open slowly, and from here on clients connect through the tap.
        alone = not any(getattr(config, name) for name in _MODEL_SOURCES)
        yield TapSource(
            TapProcess(_tap_settings(config, services, boundaries)),
            alone=alone,
            timeout=config.timeout,
            served=_served(config, limits) if alone else None,
        )


_MODEL_SOURCES = (
    "triton",
    "triton_metrics",
    "trtllm",
    "trtllm_iterations",
    "vllm",
    "sglang",
    "otlp_traces",
)
"""Settings of sources that report unavailable signals of their models themselves."""


def _served(config: Settings, limits: FetchLimits) -> ServedModels:
    return ServedModels(
        config.tap, limits, server_name=config.tap_upstream_server_name, ca=config.tap_upstream_ca
    )


def _tap_settings(
    config: Settings, services: Sequence[Service], boundaries: Mapping[str, Sequence[float]]
) -> TapSettings:
    selectors = [
        service.selects(objective) for service in services for objective in service.objectives
    ]
    selectors += [
        {**service.selector, TENANT: quota.tenant}
        for service in services
        for quota in service.quotas
    ]
    named = dict.fromkeys(selector["model"] for selector in selectors if "model" in selector)
    return TapSettings(
        taps=[str(spec) for spec in config.tap],
        tenant_header=config.tap_tenant_header,
        drain=config.tap_drain,
        connections=config.tap_connections,
        certificate=config.tap_tls_certificate,
        key=config.tap_tls_key,
        upstream_name=config.tap_upstream_server_name,
        upstream_ca=config.tap_upstream_ca,
        inject=bool(config.tap_inject),
        thresholds=boundaries,
        objectives=tuple(goodput_objectives(services)),
        tenants=_tenants(selectors) if config.tap_tenant_header else {},
        expected=[*named, *(model.name for model in config.expect_model)],
        probe=ID if config.probe else "",
        genai=_genai_bounds(config),
        prompt_classes=shared_classes(services).bounds,
        log_level=config.log_level,
    )


def _tenants(selectors: Iterable[Mapping[str, str]]) -> Mapping[str, Sequence[str]]:
    """Return the tenants whose counters exist from the start, by model; an empty one means all.

    They are those that selectors name, and ``other``.
    """
    found: dict[str, dict[str, None]] = {"": {OTHER: None}}
    for selector in selectors:
        if TENANT in selector:
            found.setdefault(selector.get("model", ""), {})[selector[TENANT]] = None
    return {model: tuple(names) for model, names in found.items()}


def _genai_bounds(config: Settings) -> Mapping[str, Sequence[float]]:
    """Return the bucket boundaries of the GenAI conventions by signal; empty if not exported."""
    profile = PROFILES.get(config.otlp_genai) if config.otlp_endpoint else None
    return {signal: one.bounds for signal, one in profile.metrics.items()} if profile else {}
