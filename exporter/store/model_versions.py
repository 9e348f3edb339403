"""Group snapshots by model, and join a model without a version with its only version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from exporter.samples import Measurement, Missing, Model, ModelInfo, Snapshot

Item = TypeVar("Item", Measurement, Missing, ModelInfo)


model_of: Callable[[Measurement | Missing | ModelInfo], Model] = attrgetter("model", "version")
"""Returns the name and version of an item's model."""


def reported_models(snapshot: Snapshot) -> dict[Model, None]:
    """Return the models with measurements or missing signals, in the snapshot's order."""
    return dict.fromkeys([*map(model_of, snapshot.measurements), *map(model_of, snapshot.missing)])


ModelItems = dict[Model, tuple[list[Measurement], list[Missing]]]
"""The measurements and missing signals of every model."""


def items_by_model(snapshot: Snapshot) -> ModelItems:
    """Return the measurements and missing signals of every model, in the snapshot's order."""
    found: ModelItems = {}
    for measurement in snapshot.measurements:
        model = measurement.model, measurement.version
        items = found.get(model)
        if items is None:
            items = found[model] = ([], [])
        items[0].append(measurement)
    for model, missing in groupby(snapshot.missing, model_of):  # mostly in runs of one model
        items = found.get(model)
        if items is None:
            items = found[model] = ([], [])
        items[1].extend(missing)
    return found


def only_versions(models: Iterable[Model], known: Iterable[Model]) -> dict[Model, Model]:
    """Map each model without a version to its version, if ``known`` has exactly one."""
    bare = {name for name, version in models if not version}
    versions: dict[str, list[Model]] = {}
    for model in known if bare else ():
        if model[1] and model[0] in bare:
            versions.setdefault(model[0], []).append(model)
    return {(name, ""): found[0] for name, found in versions.items() if len(found) == 1}


def with_versions(snapshot: Snapshot, joined: Mapping[Model, Model]) -> Snapshot:
    """Return the snapshot with the models in ``joined`` replaced by their versions."""
    if not joined:
        return snapshot

    def versioned(item: Item) -> Item:
        model = joined.get(model_of(item))
        return replace(item, version=model[1]) if model else item

    streams: Counter[Model] = Counter()
    for model, count in snapshot.waiting_streams.items():
        streams[joined.get(model, model)] += count
    return replace(
        snapshot,
        measurements=tuple(map(versioned, snapshot.measurements)),
        missing=tuple(map(versioned, snapshot.missing)),
        models=tuple(map(versioned, snapshot.models)),
        waiting_streams=streams,
    )


def without_start_times(snapshot: Snapshot, models: Container[Model]) -> Snapshot:
    """Return the snapshot without start times of the totals of ``models``."""
    return replace(
        snapshot,
        measurements=tuple(
            replace(one, start_time=None) if model_of(one) in models else one
            for one in snapshot.measurements
        ),
    )
