"""Measure the current values of live servers, or of their sidecar, for an initial SLO file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from exporter.doctor.doctor import diagnose
from exporter.doctor.sidecar_client import read_sidecar
from exporter.recording.label_limiter import OTHER
from exporter.samples import Distribution, Labels, Measurement, Value
from exporter.settings import load_settings
from exporter.store.view import View
from promql.http_client import FetchLimits
from slos.initial_file import MeasuredModel, MeasuredSignal

Key = tuple[str, str]
"""Model and signal."""


async def measure_baseline(
    urls: Sequence[str], version: str, options: Mapping[str, Sequence[str]]
) -> tuple[MeasuredModel, ...]:
    """Scrape the servers, or one sidecar, and return the values of every model.

    ``options`` are settings of the sidecar as ``load_settings`` takes them.  Raises InvalidFile if
    an address is wrong or no known server responds.
    """
    limits = FetchLimits(load_settings({**options, "triton": [urls[0]]}, {}).timeout)
    if len(urls) == 1 and (sidecar := await read_sidecar(urls[0], limits, "init")):
        return _models(_counted(sidecar[1]))
    diagnosis = await diagnose(urls, (), version, options)
    measured = {
        (one.model, one.version, one.signal, one.method): one for one in diagnosis.measurements
    }
    found: dict[Key, list[MeasuredSignal]] = {}
    for state in diagnosis.view.signals:
        measurement = measured.get((state.model, state.version, state.signal, state.method))
        base = MeasuredSignal(state.quality, state.note, state.fix)
        found.setdefault((state.model, state.signal), []).append(
            _with_values(base, _samples(measurement))
        )
    return _models(found)


def _counted(view: View) -> Mapping[Key, Sequence[MeasuredSignal]]:
    """Return the values of a sidecar by model and signal.

    ``other`` is no model: requests with names that the servers do not list.
    """
    found: dict[Key, list[MeasuredSignal]] = {}
    for state in view.signals:
        if state.model == OTHER:
            continue
        base = MeasuredSignal(state.quality, state.note, state.fix)
        found.setdefault((state.model, state.signal), []).append(_with_values(base, state.samples))
    return found


def _samples(measurement: Measurement | None) -> Mapping[Labels, Value]:
    return {} if measurement is None else measurement.samples


def _models(found: Mapping[Key, Sequence[MeasuredSignal]]) -> tuple[MeasuredModel, ...]:
    """Group signals by model, with its versions merged."""
    models: dict[str, dict[str, MeasuredSignal]] = {}
    for (model, signal), versions in found.items():
        models.setdefault(model, {})[signal] = _merged(versions)
    return tuple(MeasuredModel(name, signals) for name, signals in models.items())


def _with_values(base: MeasuredSignal, samples: Mapping[Labels, Value]) -> MeasuredSignal:
    """Sum the series of a signal, by outcome if they have that label."""
    parts = [
        replace(base, boundaries=value.boundaries, counts=value.counts)
        if isinstance(value, Distribution)
        else replace(base, values={dict(labels).get("outcome", ""): value})
        for labels, value in samples.items()
    ]
    return _merged(parts or [base])


def _merged(parts: Sequence[MeasuredSignal]) -> MeasuredSignal:
    """Merge the available parts of one signal, with the buckets of the first."""
    measured = [part for part in parts if part.quality != "unavailable"] or parts[:1]
    first = measured[0]
    counts = [part.counts for part in measured if part.boundaries == first.boundaries]
    values: dict[str, float] = {}
    for part in measured:
        for key, value in part.values.items():
            values[key] = values.get(key, 0.0) + value
    return replace(first, counts=tuple(map(sum, zip(*counts, strict=True))), values=values)
