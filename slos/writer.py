"""Write services as SLO files that :func:`slos.load.load_file` reads back.

Defaults are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from promql.expr import decimal_text
from slos.durations import format_duration, parse_duration
from slos.errors import BadValue
from slos.fields.values import API_VERSION
from slos.histogram_units import boundary_text, unit_of
from slos.imports.drafts import Note
from slos.indicators import INDICATORS
from slos.model import (
    HISTOGRAMS,
    RULES,
    SERVICE_DISABLED,
    Alerting,
    Autoscaling,
    Objective,
    Overrides,
    Rollout,
    Service,
    Tier,
    TimeSlices,
)
from slos.prompt_classes import tokens_text
from slos.yaml_text import block, entry, indented

_DEFAULT = Alerting()


def text(services: Iterable[Service], notes: Iterable[Note] = (), *, about: str = "") -> str:
    """Return the YAML of a file, one document per service; ``about`` is its first comment.

    Notes become comments above their subjects.
    """
    every = list(notes)
    head = [f"# {about}"] * bool(about) + _comments(every, "", "")
    documents = [
        "\n".join(_document(service, [note for note in every if note.service == service.service]))
        for service in services
    ]
    known = {service.service for service in services}
    lost = [_comment(note) for note in every if note.service and note.service not in known]
    return "\n".join([*head, *lost, "---\n".join(f"{each}\n" for each in documents)])


def _document(service: Service, notes: list[Note]) -> Iterator[str]:
    names = {objective.name for objective in service.objectives}
    for note in notes:
        if note.objective not in names:
            yield _comment(note)
    for key, value in _service(service).items():
        if key != "objectives":
            yield from entry(key, value)
            continue
        yield "objectives:"
        for objective in service.objectives:
            yield from indented(_comments(notes, service.service, objective.name))
            yield from block([_objective(objective)], "  ")


def _comments(notes: Iterable[Note], service: str, objective: str) -> list[str]:
    whose = (service, objective)
    return [_comment(note) for note in notes if (note.service, note.objective) == whose]


def _comment(note: Note) -> str:
    problem = note.problem
    line = f"line {problem.line}, " if problem.line else ""
    place = f"{'LOST, ' if note.lost else ''}{line}{problem.field}: "
    every = f"{place[:1].upper()}{place[1:]}{problem.message}. Fix: {problem.fix}."
    return f"# {' '.join(every.split())}"


def _service(service: Service) -> dict[str, object]:
    return _some(
        apiVersion=API_VERSION,
        service=service.service,
        owner=service.owner,
        description=service.description,
        selector=service.selector,
        window=format_duration(service.window),
        labels=service.labels,
        runbooks=service.runbooks,
        dashboards=service.dashboards,
        histograms="" if service.histograms == HISTOGRAMS[0] else service.histograms,
        rules="" if service.rules == RULES[0] else service.rules,
        prompt_classes=[tokens_text(bound) for bound in service.prompt_classes],
        error_budget=service.error_budget,
        alerting=_alerting(service.alerting),
        budget_policy=[{"when": _percent(step.spent), "do": step.do} for step in service.policy],
        rollout=_rollout(service.rollout) if service.rollout else {},
        autoscaling=_autoscaling(service.autoscaling) if service.autoscaling else {},
        quotas=[
            {"tenant": quota.tenant, "tokens": quota.tokens, "per": quota.per}
            for quota in service.quotas
        ],
        objectives=service.objectives,
    )


def _rollout(rollout: Rollout) -> dict[str, object]:
    """Write all keys: an empty mapping would not be written."""
    return _some(
        label=rollout.label,
        margin=_percent(rollout.margin),
        window=format_duration(rollout.window),
        warm_up=format_duration(rollout.warm_up),
        objectives=list(rollout.objectives),
        prometheus=rollout.prometheus,
    ) | {"guards": list(rollout.guards)}


def _autoscaling(autoscaling: Autoscaling) -> dict[str, object]:
    p99 = autoscaling.stream_p99
    return _some(
        workload=autoscaling.workload,
        max_replicas=autoscaling.max_replicas,
        prometheus=autoscaling.prometheus,
        waiting=autoscaling.waiting,
        kv_cache=_percent(autoscaling.kv_cache),
        tokens_in_flight=autoscaling.tokens_in_flight or "",
        goodput=autoscaling.goodput,
        stream_p99=format_duration(p99) if p99 else "",
        wake=autoscaling.wake,
    ) | {"min_replicas": autoscaling.min_replicas}


def _objective(objective: Objective) -> dict[str, object]:
    queries = objective.queries
    return _some(
        name=objective.name,
        indicator=_generic(objective) if queries else objective.indicator,
        threshold="" if queries else _threshold(objective),
        clauses={key: format_duration(value) for key, value in objective.clauses.items()},
        target=_percent(objective.target),
        time_slices=_slices(objective.slices),
        group_by=list(objective.group_by),
        histograms=objective.histograms,
        error_budget=objective.error_budget,
        description=objective.description,
        owner=objective.owner,
        selector=objective.selector,
        labels=objective.labels,
        alerting=_overrides(objective.alerting),
    )


def _slices(slices: TimeSlices | None) -> dict[str, str]:
    if slices is None:
        return {}
    return {"window": format_duration(slices.window), "target": _percent(slices.target)}


def _generic(objective: Objective) -> dict[str, object]:
    if objective.threshold is None:
        return {**objective.queries}
    return {**objective.queries, "threshold": _boundary(objective)}


def _boundary(objective: Objective) -> str | Decimal:
    """Write a bucket boundary as a duration if that is exact."""
    boundary, written = objective.threshold, boundary_text(objective)
    unit = unit_of(objective.queries["histogram"].partition("{")[0])
    assert boundary is not None  # noqa: S101  (histograms have one)
    try:
        return written if unit and parse_duration(written) * unit == boundary else boundary
    except BadValue:
        return boundary


def _threshold(objective: Objective) -> str:
    if objective.threshold is None:
        return ""
    ratio = INDICATORS[objective.indicator].threshold == "ratio"
    return _percent(objective.threshold) if ratio else format_duration(objective.threshold)


def _alerting(alerting: Alerting) -> dict[str, object]:
    least = alerting.min_bad_events
    return _some(
        page=_tier(alerting.page, _DEFAULT.page),
        ticket=_tier(alerting.ticket, _DEFAULT.ticket),
        cause=_tier(alerting.cause, _DEFAULT.cause),
        min_bad_events=None if least == _DEFAULT.min_bad_events else least,
        windows=[
            {
                "severity": each.tier,
                "long": format_duration(each.long),
                "short": format_duration(each.short),
                "burn_rate": each.burn_rate,
            }
            for each in alerting.windows
        ],
        causes=dict(alerting.causes),
        disable=_disable(alerting),
    )


def _overrides(overrides: Overrides) -> dict[str, object]:
    return _some(
        page=_tier(overrides.page, Tier()),
        ticket=_tier(overrides.ticket, Tier()),
        min_bad_events=overrides.min_bad_events,
        disable=_disable(overrides),
    )


def _disable(alerting: Alerting | Overrides) -> list[str]:
    return [kind for kind in SERVICE_DISABLED if kind in alerting.disable]


def _tier(tier: Tier, default: Tier) -> dict[str, object]:
    own = {key: value for key, value in tier.labels.items() if default.labels.get(key) != value}
    return _some(labels=own, annotations=tier.annotations)


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"


def _some(**parts: object) -> dict[str, object]:
    """Return the parts that are not empty; 0 is kept."""
    return {key: part for key, part in parts.items() if part or part == 0}
