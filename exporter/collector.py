"""The sidecar's families as text for Prometheus."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import exposition as prometheus_text
from prometheus_client.core import Metric, Sample
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from exporter.families import Family, Series, families
from exporter.readings import Distribution
from exporter.view import View

_UNITS = ("seconds", "bytes", "ratio")
"""Units that OpenMetrics can state, because our metric names end in them."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """A rendered scrape; ``body`` is compressed if ``encoding`` says so."""

    body: bytes
    content_type: str
    encoding: str


def expose(
    view: View,
    version: str,
    accept: str = "",
    *,
    compress: bool = False,
    more: Iterable[Family] = (),
) -> Exposition:
    """Render ``view`` as Prometheus text 0.0.4, or as OpenMetrics if ``accept`` names it.

    ``accept`` is an HTTP ``Accept`` header, ``version`` tokenslo's own, and ``more`` are families
    that are not of the view.  The encoders, and with them all quoting, are prometheus_client's.
    """
    registry = _Registry(families(view, version, more))
    if "application/openmetrics-text" in accept:
        # All our names are plain, so no name needs the slow letter-by-letter escaping.
        body = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        content_type = openmetrics.CONTENT_TYPE_LATEST
    else:
        body = prometheus_text.generate_latest(registry, openmetrics.ALLOWUTF8)
        content_type = prometheus_text.CONTENT_TYPE_PLAIN_0_0_4
    if not compress:
        return Exposition(body, content_type, "")
    return Exposition(gzip.compress(body, compresslevel=6, mtime=0), content_type, "gzip")


class _Registry(Collector):
    """What the encoders expect a registry to look like."""

    def __init__(self, shown: Iterable[Family]) -> None:
        self._shown = shown

    def collect(self) -> Iterable[Metric]:
        return map(_metric, self._shown)


def _metric(family: Family) -> Metric:
    unit = family.name.rpartition("_")[2]
    metric = Metric(family.name, family.help, family.kind, unit if unit in _UNITS else "")
    metric.samples = [sample for series in family.series for sample in _samples(family, series)]
    return metric


def _samples(family: Family, series: Series) -> Iterator[Sample]:
    labels, value = series
    if isinstance(value, Distribution):
        for edge, count in zip(value.edges, value.counts, strict=True):
            le: str = floatToGoString(edge)  # type: ignore[no-untyped-call]
            yield Sample(f"{family.name}_bucket", {**labels, "le": le}, count)
        yield Sample(f"{family.name}_count", labels, value.count)
        yield Sample(f"{family.name}_sum", labels, value.sum)
    else:
        suffix = "_total" if family.kind == "counter" else ""
        yield Sample(family.name + suffix, labels, value)
