"""Render the metric families of a view for a Prometheus scrape."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import exposition as prometheus_text
from prometheus_client.openmetrics import exposition as openmetrics

from exporter.families import MetricFamily
from exporter.store.view import View
from exporter.web.text_format import TextWriter
from exporter.web.view_families import families

TEXT_CONTENT_TYPE = prometheus_text.CONTENT_TYPE_PLAIN_0_0_4
_WRITER = TextWriter()


@dataclass(frozen=True, slots=True)
class RenderedExposition:
    """The response to a scrape; ``encoding`` is the content coding of ``body``."""

    body: bytes
    content_type: str
    encoding: str


def expose(
    view: View,
    version: str,
    accept: str = "",
    *,
    compress: bool = False,
    more: Iterable[MetricFamily] = (),
) -> RenderedExposition:
    """Render ``view`` as Prometheus text 0.0.4, or as OpenMetrics if ``accept`` names it.

    ``accept`` is an HTTP ``Accept`` header, ``version`` tokenslo's own, and ``more`` are further
    families.  The compression level is the fastest: level 6 takes longer than the rendering.
    """
    is_openmetrics = "application/openmetrics-text" in accept
    body = _WRITER.render(families(view, version, more), openmetrics=is_openmetrics)
    content_type = openmetrics.CONTENT_TYPE_LATEST if is_openmetrics else TEXT_CONTENT_TYPE
    if not compress:
        return RenderedExposition(body, content_type, "")
    return RenderedExposition(gzip.compress(body, compresslevel=1, mtime=0), content_type, "gzip")
