"""The status: content of the status page and of its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.background import TaskState
from exporter.objectives.objective_status import ObjectiveState
from exporter.samples import ModelInfo
from exporter.store.latency_history import LatencyHistory
from exporter.store.view import SignalState, View
from exporter.web.readiness import Readiness


@dataclass(frozen=True, slots=True)
class Status:
    """The content of the status page and its JSON; ``time`` is in ISO 8601."""

    version: str
    time: str
    view: View
    readiness: Readiness
    objectives: tuple[ObjectiveState, ...]
    tasks: tuple[TaskState, ...] = ()
    history: LatencyHistory = field(default_factory=LatencyHistory)


def models_with_signals(view: View) -> list[tuple[ModelInfo, list[SignalState]]]:
    """Return every model with its signals, also models that no source lists any more."""
    states = view.by_model
    infos = {(info.model, info.version): info for info in view.models}
    gone = {key: ModelInfo(*key, ready=False) for key in states if key not in infos}
    shown = sorted({**infos, **gone}.items())
    return [(info, list(states.get(key, {}).values())) for key, info in shown]


def engine_age(view: View, model: ModelInfo) -> float | None:
    """Return the age of a model's engine statistics in seconds, None if it has none."""
    return view.engine_stats_age.get((model.model, model.version))
