"""Metric families of a view in a stable order: signals, then the exporter's own metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from exporter.cooperative import Steps, completed
from exporter.families import LabelSet, MetricFamily, own_family
from exporter.samples import Labels, Value
from exporter.store.view import View
from slos.own_metrics import OWN_METRICS
from slos.signals import SIGNALS, Signal

MAX_LABEL_SETS = 65_536
"""Maximum cached label sets of signals; the same number for each info metric."""

STEP_SIZE = 200
"""Series that are collected in one step, which takes about 0.2 ms."""

_ORDERS: dict[str, tuple[Sequence[LabelSet], Sequence[int]]] = {}
"""The labels of each metric in the order of the last view, and their indices in sorted order."""

_CATALOGUE: dict[str, Signal] = {}
"""Every metric once, in catalogue order; signals that share one agree on kind and help."""
for _signal in SIGNALS.values():
    _CATALOGUE.setdefault(_signal.metric, _signal)


def families(view: View, version: str, more: Iterable[MetricFamily] = ()) -> list[MetricFamily]:
    """Return every family that has series: signals, the exporter's own metrics, then ``more``.

    ``version`` is tokenslo's own.
    """
    return completed(families_in_steps(view, version, more))


def families_in_steps(
    view: View, version: str, more: Iterable[MetricFamily] = ()
) -> Steps[list[MetricFamily]]:
    """Collect the families of :func:`families`, with about ``STEP_SIZE`` series in a step."""
    measured = yield from _measured(view)
    own = yield from _own_series(view, version)
    own_families = []
    for name in OWN_METRICS:
        if name in own:
            yield
            own_families.append(own_family(name, own[name]))
    yield
    return [family for family in (*measured, *own_families, *more) if family.series]


def _measured(view: View) -> Steps[list[MetricFamily]]:
    found: dict[str, list[tuple[LabelSet, Value]]] = {metric: [] for metric in _CATALOGUE}
    done = 0
    for state in (*view.signals, *view.slices, *view.unseen):
        if state.samples:
            done += len(state.samples)
            if done > STEP_SIZE:
                done = 0
                yield
            found[SIGNALS[state.signal].metric] += [
                (_measured_labels(state.signal, state.model, state.version, labels), value)
                for labels, value in state.samples.items()
            ]
    measured = []
    for metric, series in found.items():
        if series:
            yield
            signal = _CATALOGUE[metric]
            name = metric.removesuffix("_total")
            measured.append(MetricFamily(name, signal.kind, signal.help, _sorted(metric, series)))
    return measured


def _sorted(
    metric: str, series: list[tuple[LabelSet, Value]]
) -> tuple[tuple[LabelSet, Value], ...]:
    """Return the series sorted by label, in the last order if they have the same labels."""
    labels = [one for one, _ in series]
    known, order = _ORDERS.get(metric, ((), ()))
    if known != labels:
        order = sorted(range(len(labels)), key=lambda index: labels[index].pairs)
        _ORDERS[metric] = labels, order
    return tuple(map(series.__getitem__, order))


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


@lru_cache(maxsize=MAX_LABEL_SETS)
def _model_info(model: str, version: str, backend: str, decoupled: bool) -> LabelSet:
    return LabelSet(
        {
            "model": model,
            "version": version,
            "backend": backend,
            "decoupled": str(decoupled).lower(),
        }
    )


def _own_series(
    view: View, version: str
) -> Steps[Mapping[str, Sequence[tuple[Mapping[str, str], float]]]]:
    """Return label values and value of every series about the exporter itself."""
    infos: list[tuple[LabelSet, float]] = []
    states = (*view.signals, *view.unseen)
    for start in range(0, len(states), STEP_SIZE):
        yield
        infos += [
            _info(
                state.signal,
                state.model,
                state.version,
                state.method,
                state.quality,
                state.reason if state.quality == "unavailable" else "",
            )
            for state in states[start : start + STEP_SIZE]
        ]
    sources = view.sources
    return {
        "tokenslo_build_info": [({"version": version}, 1)],
        "tokenslo_signal_info": infos,
        "tokenslo_model_info": [
            (_model_info(model.model, model.version, model.backend, model.decoupled), 1)
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
