"""Evaluate which objectives of SLO files can be measured, and which are met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import inf
from typing import Literal

from exporter.objectives.compliance import compliance
from exporter.objectives.unclassified_models import UNCLASSIFIED
from exporter.samples import Distribution
from exporter.store.view import SignalState, View
from promql.literals import decimal_text
from slos.durations import format_duration
from slos.indicators import INDICATORS, Verdicts, by_prompt_class, good_sentence, verdicts_of
from slos.model import Objective, Service
from slos.names import goodput_objective
from slos.signals import SIGNALS

Quality = Literal["exact", "estimate", "unavailable"]

WORST_FIRST: tuple[Quality, ...] = ("unavailable", "estimate", "exact")
FIRST_RESPONSE = "triton_first_response"


@dataclass(frozen=True, slots=True)
class ObjectiveState:
    """Whether one objective can be measured on one model now, and whether it is met.

    ``good`` describes a good event.  If ``quality`` is ``unavailable``, ``note`` is the reason and
    ``fix`` the remedy; otherwise ``note`` is a limitation.  ``model`` is empty if no model matches
    the file's selector.  Events are those of the last minute, or the one that a gauge is now;
    ``met`` is None without any.  ``threshold`` is in seconds or a ratio, None without one.
    """

    file: str
    service: str
    objective: str
    indicator: str
    good: str
    target: Decimal
    model: str
    version: str
    quality: Quality
    note: str = ""
    fix: str = ""
    met: bool | None = None
    good_events: float | None = None
    bad_events: float | None = None
    threshold: float | None = None

    @property
    def target_text(self) -> str:
        """The target as the file has it: ``99.9%``."""
        return f"{decimal_text(self.target * 100)}%"


@dataclass(frozen=True, slots=True)
class _Verdict:
    quality: Quality
    note: str = ""
    fix: str = ""


def evaluate(services: Iterable[Service], view: View) -> tuple[ObjectiveState, ...]:
    """Evaluate every objective on every model that its selector matches, in file order."""
    by_model = view.by_model
    return tuple(
        _state(service, objective, model, verdict, by_model.get(model, {}))
        for service in services
        for objective in service.objectives
        if not objective.queries  # only Prometheus evaluates these
        for model, verdict in _verdicts(service, objective, by_model)
    )


def _state(
    service: Service,
    objective: Objective,
    model: tuple[str, str],
    verdict: _Verdict,
    signals: Mapping[str, SignalState],
) -> ObjectiveState:
    measured = verdict.quality != "unavailable"
    events = compliance(service, objective, signals) if measured else None
    return ObjectiveState(
        file=service.file,
        service=service.service,
        objective=objective.name,
        indicator=objective.indicator,
        good=good_sentence(objective),
        target=objective.target,
        model=model[0],
        version=model[1],
        quality=verdict.quality,
        note=verdict.note,
        fix=verdict.fix,
        met=events.meets(objective.target) if events else None,
        good_events=events.good if events else None,
        bad_events=events.bad if events else None,
        threshold=None if objective.threshold is None else float(objective.threshold),
    )


def _verdicts(
    service: Service,
    objective: Objective,
    by_model: Mapping[tuple[str, str], Mapping[str, SignalState]],
) -> Iterator[tuple[tuple[str, str], _Verdict]]:
    selector = service.selects(objective)
    chosen = [model for model in by_model if selects_model(selector, model)]
    if not chosen:
        known = ", ".join(sorted({name for name, _ in by_model})) or "none"
        wanted = ", ".join(f"{key}={value}" for key, value in selector.items())
        yield (
            ("", ""),
            _Verdict(
                "unavailable",
                f"no reported model matches the selector ({wanted})"
                if wanted
                else "no model is reported",
                f"compare the selector with the reported models: {known}",
            ),
        )
    for model in chosen:
        yield model, _verdict(service, objective, by_model[model])


def selects_model(selector: Mapping[str, str], model: tuple[str, str]) -> bool:
    """Whether a selector matches; Prometheus adds other labels (namespace, cluster, …)."""
    labels = dict(zip(("model", "version"), model, strict=True))
    return all(selector.get(key, value) == value for key, value in labels.items())


def _verdict(
    service: Service, objective: Objective, signals: Mapping[str, SignalState]
) -> _Verdict:
    indicator = INDICATORS[objective.indicator]
    found = [_signal_verdict(key, signals.get(key)) for key in indicator.signals]
    if indicator.threshold == "seconds":
        found[0] = _bucket_verdict(service, objective, signals.get(indicator.signals[0]), found[0])
        # The others only complete a latency indicator: without them it is still an estimate.
        found[1:] = map(_as_estimate, found[1:])
    verdicts = verdicts_of(objective, service)
    if verdicts and verdicts.unknown:
        found = [_counter_verdict(service, objective, verdicts, signals, found[0])]
    if by_prompt_class(objective, service):
        found.append(_prompt_class_verdict(signals.get("prompt_class")))
    worst = min(found, key=lambda one: WORST_FIRST.index(one.quality))
    if worst.quality == "unavailable":
        return worst
    return _Verdict(worst.quality, "; ".join(dict.fromkeys(v.note for v in found if v.note)))


def _signal_verdict(key: str, state: SignalState | None) -> _Verdict:
    if state is None:
        return _Verdict("unavailable", f"{_lower(key)}: not reported for this model", "")
    note = f"{_lower(key)}: {state.note}" if state.note else ""
    return _Verdict(state.quality, note, state.fix)


def _prompt_class_verdict(state: SignalState | None) -> _Verdict:
    if state is None:
        return _Verdict("unavailable", UNCLASSIFIED.reason, UNCLASSIFIED.fix)
    return _signal_verdict("prompt_class", state)


def _as_estimate(verdict: _Verdict) -> _Verdict:
    if verdict.quality == "unavailable":
        return _Verdict("estimate", f"not counted: {verdict.note}")
    return verdict


def _counter_verdict(
    service: Service,
    objective: Objective,
    verdicts: Verdicts,
    signals: Mapping[str, SignalState],
    verdict: _Verdict,
) -> _Verdict:
    """Evaluate a counter of verdicts, which is unavailable while all of them are unknown."""
    state = signals.get(verdicts.signal)
    if state is None or verdict.quality == "unavailable":
        return verdict
    own = goodput_objective(service.service, objective.name)
    counts: dict[str, float] = {}
    for labels, value in state.samples.items():
        if dict(labels).get("objective") == own and not isinstance(value, Distribution):
            result = dict(labels).get(verdicts.label, "")
            counts[result] = counts.get(result, 0.0) + value
    known = sum(counts.get(result, 0.0) for result in (*verdicts.good, *verdicts.bad))
    if counts.get(verdicts.unknown) and not known:
        return _Verdict(
            "unavailable",
            f"no request so far provided all of {', '.join(objective.clauses)}",
            "remove the clause that the server does not measure: queue needs its own timing, and "
            "ttft, tpot and max_gap need streaming requests",
        )
    return verdict


def _bucket_verdict(
    service: Service, objective: Objective, state: SignalState | None, verdict: _Verdict
) -> _Verdict:
    """Evaluate the buckets: the threshold must be one of their boundaries."""
    if state is None or objective.threshold is None or verdict.quality == "unavailable":
        return verdict
    threshold = float(objective.threshold)
    distributions = [value for value in state.samples.values() if isinstance(value, Distribution)]
    for distribution in distributions:
        if threshold not in distribution.boundaries:
            return _Verdict(
                "unavailable",
                _no_bucket(objective.threshold, distribution),
                _bucket_fix(service, state, threshold, distribution),
            )
    return verdict


def _no_bucket(threshold: Decimal, distribution: Distribution) -> str:
    if distribution.boundaries == (inf,):
        return "the source reports only count and sum, no buckets"
    boundaries = ", ".join(
        _seconds(boundary) for boundary in distribution.boundaries if boundary != inf
    )
    return f"{format_duration(threshold)} is not a bucket boundary of the histogram ({boundaries})"


def _bucket_fix(
    service: Service, state: SignalState, threshold: float, distribution: Distribution
) -> str:
    if state.method == FIRST_RESPONSE:
        return (
            f"add the output of `tokenslo server-config {service.file}` to the model's "
            "config.pbtxt and reload the model"
        )
    around = [
        _seconds(boundary)
        for below, above in pairwise((0.0, *distribution.boundaries))
        if below < threshold < above
        for boundary in (below, above)
        if 0 < boundary < inf
    ]
    return (
        f"use {' or '.join(around)} as threshold" if around else state.fix or "drop the objective"
    )


def _seconds(boundary: float) -> str:
    return format_duration(Decimal(repr(boundary)))


def _lower(key: str) -> str:
    title = SIGNALS[key].title
    return title if title[:2].isupper() else title[:1].lower() + title[1:]
