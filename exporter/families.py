"""From a view to families of series: what ``/metrics`` and OTLP both show, in one order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from exporter.readings import Value
from exporter.view import SignalState, View
from slos.signals import OWN_METRICS, SIGNALS, Kind, Signal

Series = tuple[dict[str, str], Value]
"""Labels and value."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all of its series; ``name`` is that on ``/metrics``, without ``_total``."""

    name: str
    kind: Kind
    help: str
    series: tuple[Series, ...]


_CATALOGUE: dict[str, Signal] = {}
"""Every metric once, in catalogue order; signals that share one agree on kind and help."""
for _signal in SIGNALS.values():
    _CATALOGUE.setdefault(_signal.metric, _signal)


def families(view: View, version: str, more: Iterable[Family] = ()) -> Iterator[Family]:
    """Yield every family that has series: what is measured, the exporter's own, then ``more``.

    ``version`` is tokenslo's own.
    """
    yield from filter(lambda family: family.series, (*_measured(view), *_own(view, version), *more))


def own_family(name: str, series: Iterable[tuple[Mapping[str, str], float]]) -> Family:
    """Return one of the exporter's own metrics, which the catalogue describes."""
    kind, text, _ = OWN_METRICS[name]
    return Family(name, kind, text, tuple((_texts(labels), value) for labels, value in series))


def _measured(view: View) -> Iterator[Family]:
    found: dict[str, list[Series]] = {metric: [] for metric in _CATALOGUE}
    for state in (*view.signals, *view.slices, *view.unseen):
        found[SIGNALS[state.signal].metric].extend(_series(state))
    for metric, series in found.items():
        signal = _CATALOGUE[metric]
        name = metric.removesuffix("_total")
        yield Family(name, signal.kind, signal.help, tuple(sorted(series, key=_by_labels)))


def _series(state: SignalState) -> Iterator[Series]:
    fixed = {"model": state.model, "version": state.version, **SIGNALS[state.signal].fixed}
    for labels, value in state.samples.items():
        yield _texts({**fixed, **dict(labels)}), value


def _by_labels(series: Series) -> list[tuple[str, str]]:
    return sorted(series[0].items())


def _own(view: View, version: str) -> Iterator[Family]:
    own = _own_series(view, version)
    for name in OWN_METRICS:
        if name in own:
            yield own_family(name, own[name])


def _own_series(view: View, version: str) -> Mapping[str, list[tuple[dict[str, str], float]]]:
    """Return label values and value of every series about the exporter itself."""
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


def _texts(labels: Mapping[str, str]) -> dict[str, str]:
    """Make label values encodable: JSON can carry halves of surrogate pairs, UTF-8 cannot."""
    return {
        name: value if value.isascii() else value.encode(errors="replace").decode()
        for name, value in labels.items()
    }
