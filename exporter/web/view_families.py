"""Metric families of a view in a stable order: signals, then the exporter's own metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from exporter.families import LabelSet, MetricFamily, own_family
from exporter.samples import Labels, Value
from exporter.store.view import View
from slos.own_metrics import OWN_METRICS
from slos.signals import SIGNALS, Signal

MAX_LABEL_SETS = 65_536
"""Maximum cached label sets of signals; the same number for each info metric."""

_CATALOGUE: dict[str, Signal] = {}
"""Every metric once, in catalogue order; signals that share one agree on kind and help."""
for _signal in SIGNALS.values():
    _CATALOGUE.setdefault(_signal.metric, _signal)


def families(view: View, version: str, more: Iterable[MetricFamily] = ()) -> Iterator[MetricFamily]:
    """Yield every family that has series: signals, the exporter's own metrics, then ``more``.

    ``version`` is tokenslo's own.
    """
    yield from filter(lambda family: family.series, (*_measured(view), *_own(view, version), *more))


def _measured(view: View) -> Iterator[MetricFamily]:
    found: dict[str, list[tuple[LabelSet, Value]]] = {metric: [] for metric in _CATALOGUE}
    for state in (*view.signals, *view.slices, *view.unseen):
        if state.samples:
            found[SIGNALS[state.signal].metric] += [
                (_measured_labels(state.signal, state.model, state.version, labels), value)
                for labels, value in state.samples.items()
            ]
    for metric, series in found.items():
        signal = _CATALOGUE[metric]
        name = metric.removesuffix("_total")
        series.sort(key=_by_labels)
        yield MetricFamily(name, signal.kind, signal.help, tuple(series))


@lru_cache(maxsize=MAX_LABEL_SETS)
def _measured_labels(signal: str, model: str, version: str, labels: Labels) -> LabelSet:
    fixed = {"model": model, "version": version, **SIGNALS[signal].fixed}
    return LabelSet({**fixed, **dict(labels)})


@lru_cache(maxsize=MAX_LABEL_SETS)
def _info(
    signal: str, model: str, version: str, method: str, quality: str, reason: str
) -> tuple[LabelSet, float]:
    labels = {
        "signal": signal,
        "model": model,
        "version": version,
        "method": method,
        "quality": quality,
    }
    return LabelSet({**labels, "reason": reason} if reason else labels), 1


def _by_labels(series: tuple[LabelSet, Value]) -> Labels:
    return series[0].pairs


def _own(view: View, version: str) -> Iterator[MetricFamily]:
    own = _own_series(view, version)
    for name in OWN_METRICS:
        if name in own:
            yield own_family(name, own[name])


def _own_series(
    view: View, version: str
) -> Mapping[str, Sequence[tuple[Mapping[str, str], float]]]:
    """Return label values and value of every series about the exporter itself."""
    sources = view.sources
    return {
        "tokenslo_build_info": [({"version": version}, 1)],
        "tokenslo_signal_info": [
            _info(
                state.signal,
                state.model,
                state.version,
                state.method,
                state.quality,
                state.reason if state.quality == "unavailable" else "",
            )
            for state in (*view.signals, *view.unseen)
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
        "tokenslo_source_lost_records": [
            ({"source": source.source}, source.lost_records)
            for source in sources
            if source.lost_records is not None
        ],
        "tokenslo_engine_stats_age_seconds": [
            ({"model": model, "version": version_}, age)
            for (model, version_), age in sorted(view.engine_stats_age.items())
        ],
    }
