"""The status and the readiness as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite

from exporter.samples import Distribution, Value
from exporter.store.view import SignalState, SourceState
from exporter.web.readiness import Readiness
from exporter.web.status import Status, engine_age, models_with_signals
from slos.signals import SIGNALS

Json = Mapping[str, object]


def readiness_json(readiness: Readiness) -> str:
    """Return ``{"ready": …, "layers": [{"layer", "name", "ready", "reason", "version"}]}``.

    ``layer`` is ``process``, ``source``, ``server``, ``model``, ``backend``, ``decode`` or
    ``probe``; its ``ready`` is null if unknown.
    """
    return _dump(_readiness(readiness))


def status_json(status: Status) -> str:
    """Return the status as one JSON object.

    Keys are added, never removed or renamed.  Durations are seconds; unknown values are null::

        tokenslo, time
        ready, layers[]      layer, name, ready, reason, version
        sources[]            source, up, age_seconds, read_seconds, error, errors{kind: count},
                             server_ready
        objectives[]         file, service, objective, indicator, good, target, threshold, model,
                             version, quality, note, fix; of the last minute: met, good_events,
                             bad_events
        tasks[]              task, restarts, running, error
        models[]             model, version, backend, decoupled, ready, reason, excluded,
                             engine_stats_age_seconds
          signals[]          signal, metric, unit, method, quality, note, fix, recent
            samples[]        labels{}, and either value (gauges, counters) or count and sum
    """
    return _dump(
        {
            "tokenslo": status.version,
            "time": status.time,
            **_readiness(status.readiness),
            "sources": [_source(source) for source in status.view.sources],
            "objectives": [
                asdict(state) | {"target": state.target_text} for state in status.objectives
            ],
            "tasks": [asdict(task) for task in status.tasks],
            "models": [
                {
                    **asdict(model),
                    "engine_stats_age_seconds": engine_age(status.view, model),
                    "signals": [_signal(state) for state in states],
                }
                for model, states in models_with_signals(status.view)
            ],
        }
    )


def _dump(document: Json) -> str:
    return json.dumps(document, indent=2) + "\n"


def _readiness(readiness: Readiness) -> Json:
    return {
        "ready": readiness.ready,
        "layers": [asdict(layer) for layer in readiness.layers],
    }


def _source(source: SourceState) -> Json:
    return {
        "source": source.source,
        "up": source.up,
        "age_seconds": source.age,
        "read_seconds": source.read_seconds,
        "error": source.error,
        "errors": dict(source.errors),
        "server_ready": source.ready,
    }


def _signal(state: SignalState) -> Json:
    signal = SIGNALS[state.signal]
    return {
        "signal": state.signal,
        "metric": signal.metric,
        "unit": signal.unit,
        "method": state.method,
        "quality": state.quality,
        "note": state.note,
        "fix": state.fix,
        "recent": state.recent,
        "samples": [
            {"labels": {**signal.fixed, **dict(labels)}, **_numbers(value)}
            for labels, value in sorted(state.samples.items())
        ],
    }


def _numbers(value: Value) -> Json:
    if isinstance(value, Distribution):
        return {"count": value.count, "sum": value.sum}
    return {"value": value if isfinite(value) else None}
