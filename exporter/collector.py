"""From a view to Prometheus metric families, in the order of the signal catalogue."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import exposition as prometheus_text
from prometheus_client.core import Metric, Sample
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from exporter.readings import Distribution, Value
from exporter.view import SignalState, View
from slos.signals import OWN_METRICS, SIGNALS, Signal

_UNITS = ("seconds", "bytes", "ratio")
"""Units that OpenMetrics can state, because our metric names end in them."""

Series = tuple[dict[str, str], Value]

_CATALOGUE: dict[str, Signal] = {}
"""Every family once, in catalogue order; signals that share one agree on kind and help."""
for _signal in SIGNALS.values():
    _CATALOGUE.setdefault(_signal.metric, _signal)


@dataclass(frozen=True, slots=True)
class Exposition:
    """A rendered scrape; ``body`` is compressed if ``encoding`` says so."""

    body: bytes
    content_type: str
    encoding: str


def expose(view: View, version: str, accept: str = "", *, compress: bool = False) -> Exposition:
    """Render ``view`` as Prometheus text 0.0.4, or as OpenMetrics if ``accept`` names it.

    ``accept`` is an HTTP ``Accept`` header and ``version`` tokenslo's own.  The encoders, and with
    them all quoting, are prometheus_client's.
    """
    registry = _Families(view, version)
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


def families(view: View, version: str) -> Iterator[Metric]:
    """Yield every family that has samples: first what is measured, then the exporter's own."""
    measured: dict[str, list[Series]] = {metric: [] for metric in _CATALOGUE}
    for state in view.signals:
        measured[SIGNALS[state.signal].metric].extend(_series(state))
    for metric, series in measured.items():
        signal = _CATALOGUE[metric]
        samples = [
            sample for one in sorted(series, key=_by_labels) for sample in _samples(metric, *one)
        ]
        yield from _family(metric.removesuffix("_total"), signal.kind, signal.help, samples)
    own = _own_samples(view, version)
    for name, (kind, text, _) in OWN_METRICS.items():
        sample_name = f"{name}_total" if kind == "counter" else name
        samples = [Sample(sample_name, _texts(labels), value) for labels, value in own[name]]
        yield from _family(name, kind, text, samples)


class _Families(Collector):
    """What the encoders expect a registry to look like."""

    def __init__(self, view: View, version: str) -> None:
        self._view = view
        self._version = version

    def collect(self) -> Iterable[Metric]:
        return families(self._view, self._version)


def _family(name: str, kind: str, text: str, samples: list[Sample]) -> Iterator[Metric]:
    if samples:
        unit = name.rpartition("_")[2]
        family = Metric(name, text, kind, unit if unit in _UNITS else "")
        family.samples = samples
        yield family


def _series(state: SignalState) -> Iterator[Series]:
    fixed = {"model": state.model, "version": state.version, **SIGNALS[state.signal].fixed}
    for labels, value in state.samples.items():
        yield _texts({**fixed, **dict(labels)}), value


def _by_labels(series: Series) -> list[tuple[str, str]]:
    return sorted(series[0].items())


def _samples(metric: str, labels: dict[str, str], value: Value) -> Iterator[Sample]:
    if isinstance(value, Distribution):
        yield from _histogram(metric, labels, value)
    else:
        yield Sample(metric, labels, value)


def _histogram(metric: str, labels: dict[str, str], value: Distribution) -> Iterator[Sample]:
    for edge, count in zip(value.edges, value.counts, strict=True):
        le: str = floatToGoString(edge)  # type: ignore[no-untyped-call]
        yield Sample(f"{metric}_bucket", {**labels, "le": le}, count)
    yield Sample(f"{metric}_count", labels, value.count)
    yield Sample(f"{metric}_sum", labels, value.sum)


def _own_samples(view: View, version: str) -> Mapping[str, list[tuple[dict[str, str], float]]]:
    """Return label values and value of every sample about the exporter itself."""
    sources = view.sources
    return {
        "tokenslo_build_info": [({"version": version}, 1)],
        "tokenslo_signal_info": [
            (
                {
                    "signal": state.signal,
                    "model": state.model,
                    "version": state.version,
                    "method": state.method,
                    "quality": state.quality,
                },
                1,
            )
            for state in view.signals
        ],
        "tokenslo_model_info": [
            (
                {
                    "model": model.model,
                    "version": model.version,
                    "backend": model.backend,
                    "decoupled": str(model.decoupled).lower(),
                },
                1,
            )
            for model in view.models
        ],
        "tokenslo_source_up": [({"source": source.source}, float(source.up)) for source in sources],
        "tokenslo_source_age_seconds": [
            ({"source": source.source}, source.age) for source in sources if source.age is not None
        ],
        "tokenslo_source_read_seconds": [
            ({"source": source.source}, source.read_seconds)
            for source in sources
            if source.read_seconds is not None
        ],
        "tokenslo_source_errors": [
            ({"source": source.source, "kind": kind}, count)
            for source in sources
            for kind, count in sorted(source.errors.items())
        ],
        "tokenslo_engine_stats_age_seconds": [
            ({"model": model, "version": version_}, age)
            for (model, version_), age in sorted(view.engine_stats_age.items())
        ],
    }


def _texts(labels: Mapping[str, str]) -> dict[str, str]:
    """Make label values encodable: JSON can carry halves of surrogate pairs, UTF-8 cannot."""
    return {
        name: value if value.isascii() else value.encode(errors="replace").decode()
        for name, value in labels.items()
    }
