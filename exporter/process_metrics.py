"""``process_*`` metrics of the sidecar, collected by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from exporter.families import MetricFamily
from slos.signals import Kind

_COLLECTOR = ProcessCollector(registry=CollectorRegistry())


def families() -> Iterator[MetricFamily]:
    """Yield the families; none on a system without ``/proc``."""
    for metric in _COLLECTOR.collect():
        series = tuple((dict(sample.labels), sample.value) for sample in metric.samples)
        yield MetricFamily(metric.name, cast(Kind, metric.type), metric.documentation, series)
