"""Process metrics of the sidecar and of its tap process, collected by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import cast

from prometheus_client.process_collector import ProcessCollector

from exporter.families import MetricFamily, own_family
from slos.own_metrics import OWN_METRICS
from slos.signals import Kind

_COLLECTOR = ProcessCollector(registry=None)


def families() -> Iterator[MetricFamily]:
    """Yield ``process_*`` of the sidecar; none on a system without ``/proc``."""
    for metric in _COLLECTOR.collect():
        series = tuple((dict(sample.labels), sample.value) for sample in metric.samples)
        yield MetricFamily(metric.name, cast(Kind, metric.type), metric.documentation, series)


def tap_families(pid: int) -> Iterator[MetricFamily]:
    """Yield ``tokenslo_tap_process_*`` of the tap process, none if it has ended."""
    for metric in _tap_collector(pid).collect():
        if metric.name in OWN_METRICS:
            yield own_family(metric.name, [({}, sample.value) for sample in metric.samples])


@lru_cache(maxsize=1)
def _tap_collector(pid: int) -> ProcessCollector:
    return ProcessCollector("tokenslo_tap", lambda: pid, registry=None)
