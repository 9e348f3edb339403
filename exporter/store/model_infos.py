"""The models that the sources report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from exporter.samples import Model, ModelInfo, Snapshot
from exporter.store.model_names import name_error, shortened
from exporter.store.model_versions import model_of


def model_infos(
    snapshots: Iterable[Snapshot], excluded: Mapping[str, Mapping[Model, str]]
) -> tuple[ModelInfo, ...]:
    """Return every model by name, as the first snapshot that has it describes it.

    ``excluded`` has, by source, the models that are not reported on, with the reason.
    """
    infos: dict[Model, ModelInfo] = {}
    for snapshot in snapshots:
        of_source = excluded.get(snapshot.source, {})
        for info in snapshot.models:
            model = model_of(info)
            if why := of_source.get(model) or name_error(model):
                name, version = map(shortened, model)
                info = replace(info, model=name, version=version, excluded=why)
            infos.setdefault(model_of(info), info)
    return tuple(info for _, info in sorted(infos.items()))
