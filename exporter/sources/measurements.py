"""Build measurements of signals that have a single series per model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from exporter.samples import UNLABELLED, Measurement, Model, Value


def of_model(
    signal: str, model: Model, method: str, value: Value | None, note: str = ""
) -> Iterator[Measurement]:
    """Yield the measurement of one model; nothing if it has no value."""
    if value is not None:
        yield Measurement(signal, *model, method, {UNLABELLED: value}, note)


def of_models(
    signal: str, method: str, models: Iterable[Model], values: Mapping[Model, Value]
) -> Iterator[Measurement]:
    """Yield the measurements of the models that have a value."""
    for model in models:
        value = values.get(model)
        if value is not None:
            yield Measurement(signal, *model, method, {UNLABELLED: value})
