"""Render the metric families of a view for a Prometheus scrape."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import exposition as prometheus_text
from prometheus_client.openmetrics import exposition as openmetrics

from exporter.cooperative import Steps, completed
from exporter.families import MetricFamily
from exporter.store.view import View
from exporter.web.text_format import TextWriter
from exporter.web.view_families import families_in_steps

TEXT_CONTENT_TYPE = prometheus_text.CONTENT_TYPE_PLAIN_0_0_4
_WRITER = TextWriter()
_GZIP = 16  # zlib's flag for the gzip format
COMPRESSED_BYTES = 64 * 1024
"""Bytes that are compressed in one step, in 0.2 ms."""


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
    families.
    """
    exposition = completed(expose_in_steps(view, version, accept, more=more))
    return completed(compressed_in_steps(exposition)) if compress else exposition


def expose_in_steps(
    view: View, version: str, accept: str = "", *, more: Iterable[MetricFamily] = ()
) -> Steps[RenderedExposition]:
    """Render as :func:`expose` does, uncompressed, in steps of about 0.2 ms."""
    is_openmetrics = "application/openmetrics-text" in accept
    found = yield from families_in_steps(view, version, more)
    body = yield from _WRITER.render_in_steps(found, openmetrics=is_openmetrics)
    content_type = openmetrics.CONTENT_TYPE_LATEST if is_openmetrics else TEXT_CONTENT_TYPE
    return RenderedExposition(body, content_type, "")


def compressed_in_steps(exposition: RenderedExposition) -> Steps[RenderedExposition]:
    """Compress with gzip in steps, at the fastest level: level 6 takes longer than the rendering.

    A thread may keep the event loop from its processor for milliseconds, even without the
    interpreter's lock.
    """
    compressor = zlib.compressobj(1, wbits=zlib.MAX_WBITS | _GZIP)
    body, parts = memoryview(exposition.body), []
    for start in range(0, len(body), COMPRESSED_BYTES):
        parts.append(compressor.compress(body[start : start + COMPRESSED_BYTES]))
        yield
    parts.append(compressor.flush())
    return RenderedExposition(b"".join(parts), exposition.content_type, "gzip")
