"""Export services as OpenSLO v1, with their queries as PromQL.

Every objective becomes an SLO.  OpenSLO has no placeholder for windows; ``{{.window}}`` is that of
the specification's examples.  Its alert policies have one condition with one window each, so alerts
are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from promql.expr import vector
from promql.query import InstantQuery
from slos.durations import format_duration
from slos.errors import Problem
from slos.events import Counting, bucket
from slos.generic import WINDOW, parsed
from slos.imports.drafts import Note, query_of
from slos.imports.openslo_indicators import OPERATORS
from slos.indicator_events import counted
from slos.model import Alerting, Objective, Overrides, Service
from slos.names import BASE_WINDOW
from slos.yaml_text import block

_VERSION = "openslo/v1"
_OPERATORS = {sign: word for word, sign in OPERATORS.items()}
_COMPARED = re.compile(r"\((?P<query>.*)\) (?P<op>[<>]=?) bool (?P<value>-?[0-9.]+)")


def text(services: Sequence[Service], *, about: str = "") -> str:
    """Return the YAML of a file; ``about`` is its first comment."""
    names = _names(services)
    documents = [document for service in services for document in _documents(service, names)]
    head = [f"# {about}\n"] * bool(about)
    return "".join([*head, "---\n".join("\n".join(block(each)) + "\n" for each in documents)])


def left_out(services: Sequence[Service]) -> Iterator[Note]:
    """Yield notes on parts that OpenSLO cannot express."""
    names = _names(services)
    for service in services:
        for key, found in _other_keys(service).items():
            if found:
                yield _note(service, key, _NO_PLACE, _KEEP)
        for index, objective in enumerate(service.objectives):
            for key, (message, fix) in _of_objective(objective, service).items():
                note = _note(service, f"objectives[{index}].{key}", message, fix, objective)
                yield replace(note, lost=key == "group_by")
            own = names[service.service, objective.name]
            if own != objective.name:
                why = f"is written {own}, as OpenSLO distinguishes SLOs by name only"
                fix = "expect it as the name of the objective if this is read again"
                yield _note(service, f"objectives[{index}].name", why, fix, objective)


_NO_PLACE = "is left out: OpenSLO has no place for it"
_KEEP = "keep it in a file of ours"


def _note(
    service: Service, field: str, message: str, fix: str, objective: Objective | None = None
) -> Note:
    line, whose = (objective.line, objective.name) if objective else (service.line, "")
    return Note(Problem(service.file, line, field, message, fix), False, service.service, whose)


def _other_keys(service: Service) -> dict[str, object]:
    """Return the keys of a service besides its objectives."""
    return {
        "owner": service.owner,
        "runbooks": service.runbooks,
        "dashboards": service.dashboards,
        "alerting": service.alerting != Alerting(),
        "budget_policy": service.policy,
        "quotas": service.quotas,
    }


def _of_objective(objective: Objective, service: Service) -> dict[str, tuple[str, str]]:
    """Return the keys of an objective that change or are left out, with reason and fix."""
    others = {
        "owner": objective.owner,
        "alerting": objective.alerting != Overrides(),
        "group_by": objective.group_by,
    }
    skipped = {key: (_NO_PLACE, _KEEP) for key, found in others.items() if found}
    if not objective.queries:
        skipped["indicator"] = (
            f"{objective.indicator} is written as its queries, which give the sidecar neither "
            "thresholds nor clauses",
            "keep a file of ours for the sidecar",
        )
    elif not _can_be_read_back(objective, service):
        skipped["indicator"] = (
            "is written as rates, as OpenSLO has no equivalent",
            "expect the same numbers, but other queries if this is read again",
        )
    return skipped


def _can_be_read_back(objective: Objective, service: Service) -> bool:
    """Whether a user-defined indicator survives a round trip."""
    match objective.indicator:
        case "histogram":
            return not service.native(objective)
        case "error_ratio":
            return objective.slices is None
        case "bad_events" | "good_events":  # counters or rates, but not one of each
            return len({bool(parsed(query).selector) for query in objective.queries.values()}) == 1
    return objective.indicator == "gauge"


def _names(services: Sequence[Service]) -> dict[tuple[str, str], str]:
    """Return a unique name for each objective, its own if possible."""
    every = [(service.service, each.name) for service in services for each in service.objectives]
    used = Counter(name for _, name in every)
    return {
        (service, name): name if used[name] == 1 else f"{service}-{name}" for service, name in every
    }


def _documents(
    service: Service, names: Mapping[tuple[str, str], str]
) -> Iterator[dict[str, object]]:
    about: dict[str, object] = {
        "apiVersion": _VERSION,
        "kind": "Service",
        "metadata": {"name": service.service},
    }
    if service.description:
        about["spec"] = {"description": service.description}
    yield about
    for objective in service.objectives:
        yield _slo(service, objective, names[service.service, objective.name])


def _slo(service: Service, objective: Objective, name: str) -> dict[str, object]:
    labels = {key: [value] for key, value in {**service.labels, **objective.labels}.items()}
    method, slices = _budgeting(objective)
    sli, compared = _sli(objective, service)
    return {
        "apiVersion": _VERSION,
        "kind": "SLO",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "spec": {
            **({"description": objective.description} if objective.description else {}),
            "service": service.service,
            "indicator": {"metadata": {"name": f"{name}-sli"}, "spec": sli},
            "timeWindow": [{"duration": format_duration(service.window), "isRolling": True}],
            "budgetingMethod": method,
            "objectives": [{**compared, "target": objective.target, **slices}],
        },
    }


def _budgeting(objective: Objective) -> tuple[str, dict[str, object]]:
    """Return the budgeting method and the keys of its slices."""
    if objective.slices is not None:
        length = format_duration(objective.slices.window)
        target = objective.slices.target
        return "Timeslices", {"timeSliceTarget": target, "timeSliceWindow": length}
    if objective.indicator == "error_ratio":
        return "RatioTimeslices", {"timeSliceWindow": BASE_WINDOW}
    return "Occurrences", {}


def _sli(objective: Objective, service: Service) -> tuple[dict[str, object], dict[str, object]]:
    """Return the SLI, and the comparison of its objective."""
    queries = objective.queries
    if objective.indicator == "histogram" and not service.native(objective):
        return {"ratioMetric": _ratio(_of_histogram(objective))}, {}
    match objective.indicator:
        case "bad_events" | "good_events":
            return {"ratioMetric": _ratio(queries)}, {}
        case "error_ratio":
            return {"ratioMetric": {"rawType": "failure", "raw": _metric(queries["ratio"])}}, {}
        case "gauge":
            query, op, value = _comparison(queries["gauge"])
            return {"thresholdMetric": _metric(query)}, {"op": op, "value": value}
    window = format_duration(objective.slices.window) if objective.slices else BASE_WINDOW
    measured = counted(objective, service, Counting(window))
    queries = {"bad": str(measured.bad), "total": str(measured.total)}
    metrics = {role: _metric(query) for role, query in queries.items()}
    return {"ratioMetric": {"counter": False, **metrics}}, {}


def _of_histogram(objective: Objective) -> dict[str, str]:
    """Express a histogram as the counters of its bucket and of all observations."""
    of = parsed(objective.queries["histogram"]).selector
    assert of is not None  # noqa: S101  (read_generic requires it)
    assert objective.threshold is not None  # noqa: S101  (likewise)
    within = bucket(of.metric, of.matchers, objective.threshold)
    return {"good": str(within), "total": str(vector(f"{of.metric}_count", of.matchers))}


def _ratio(queries: Mapping[str, str]) -> dict[str, object]:
    read = {role: parsed(query) for role, query in queries.items()}
    counter = all(query.selector for query in read.values())
    return {
        "counter": counter,
        **{
            role: _metric(queries[role] if counter else _rate(query, queries[role]))
            for role, query in read.items()
        },
    }


def _rate(query: InstantQuery, written: str) -> str:
    return f"sum(rate({written}[{WINDOW}]))" if query.selector else written


def _comparison(gauge: str) -> tuple[str, str, Decimal]:
    """Split a comparison; other queries are good where they are not 0."""
    found = _COMPARED.fullmatch(gauge)
    if found and query_of(found["query"]):
        return found["query"], _OPERATORS[found["op"]], Decimal(found["value"])
    return f"({gauge}) != bool 0", "gt", Decimal(0)


def _metric(query: str) -> dict[str, object]:
    spec = {"query": query.replace(WINDOW, "{{.window}}")}
    return {"metricSource": {"type": "Prometheus", "spec": spec}}
