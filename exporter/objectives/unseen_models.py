"""Zero counters for models that an SLO file selects and no source has reported yet.

Only the counters that the file's objectives read are served, with an empty version; gauges are
reported as unavailable.  A selector without ``model`` names no model, so nothing is served for it
until a source reports one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from exporter.recording.goodput import GoodputObjective, goodput_objectives
from exporter.recording.initial_series import known_labels, slice_labels
from exporter.samples import Labels, Value
from exporter.store.view import SignalState, View
from slos.indicators import INDICATORS, sidecar_evaluates_slices
from slos.model import Objective, Service
from slos.names import goodput_objective
from slos.prompt_classes import PromptClasses
from slos.signals import LATENCIES, TENANT, TENANT_SIGNALS, slo_events

METHOD = "selected"
_UNSEEN = "no source has reported it yet"
_FIX = "send it a request, or compare the selector with the names of the server's models"


def selected_models(services: Iterable[Service]) -> dict[str, tuple[SignalState, ...]]:
    """Return the signals that objectives read, by the model that their selector names."""
    found: dict[str, dict[str, dict[Labels, Value]]] = {}
    gauges: dict[str, set[str]] = {}
    for service in services:
        own = tuple(goodput_objectives([service]))
        classes = PromptClasses.of(service.prompt_classes).labels
        for objective in service.objectives:
            selector = service.selects(objective)
            if "model" in selector and not objective.queries:
                counters = found.setdefault(selector["model"], {})
                for signal, labels in _counters(service, objective, own, classes):
                    counters.setdefault(signal, {}).update(dict.fromkeys(labels, 0.0))
                if INDICATORS[objective.indicator].in_slices:
                    signals = INDICATORS[objective.indicator].signals
                    gauges.setdefault(selector["model"], set()).update(signals)
    return {
        model: (
            *(
                SignalState(signal, model, "", METHOD, "exact", samples)
                for signal, samples in counters.items()
            ),
            *(
                SignalState(signal, model, "", "", "unavailable", {}, _UNSEEN, _FIX, _UNSEEN)
                for signal in sorted(gauges.get(model, ()))
            ),
        )
        for model, counters in found.items()
    }


def with_unseen(view: View, selected: Mapping[str, Sequence[SignalState]]) -> View:
    """Return the view with the counters of selected models that no source has reported.

    Gauges that no source reports are also added for models that only a tap has seen.
    """
    if not selected:
        return view
    seen = {state.model for state in view.signals}
    reported = {(state.model, state.signal) for state in view.signals}
    states = (
        state
        for model, expected in selected.items()
        for state in expected
        if model not in seen or not (state.samples or (model, state.signal) in reported)
    )
    return replace(view, unseen=tuple(states))


def _counters(
    service: Service,
    objective: Objective,
    own: Sequence[GoodputObjective],
    classes: Sequence[str],
) -> Iterable[tuple[str, tuple[Labels, ...]]]:
    indicator, selector = INDICATORS[objective.indicator], service.selects(objective)
    if sidecar_evaluates_slices(objective, service):
        yield "slo_slices", slice_labels(goodput_objective(service.service, objective.name))
    if objective.indicator in LATENCIES and objective.threshold is not None:
        signal = slo_events(objective.indicator)
        thresholds = (float(objective.threshold),)
        yield signal, known_labels(signal, thresholds=thresholds, prompt_classes=classes)
    elif indicator.verdicts:
        signal = indicator.verdicts.signal
        named = [one for one in own if one.name.endswith(f"/{objective.name}")]
        labels = known_labels(signal, objectives=named)
        yield signal, known_labels(signal, objectives=named, prompt_classes=classes)
        if TENANT in selector and signal in TENANT_SIGNALS:
            of_tenant = (TENANT, selector[TENANT])
            yield TENANT_SIGNALS[signal], tuple(tuple(sorted((*one, of_tenant))) for one in labels)
