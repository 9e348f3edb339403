"""Write services as OpenSLO v1, with their queries as PromQL.

Every objective is an SLO of its own.  OpenSLO has no placeholder for windows; ``{{.window}}`` is
that of the specification's own examples.  Its alert policies know one condition with one window
each, so alerts are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from promql.query import InvalidQuery, Query
from slos.durations import format_duration
from slos.errors import Problem
from slos.generic import WINDOW, parsed
from slos.imports.foreign import Note
from slos.indicators import events
from slos.model import Alerting, Objective, Overrides, Service
from slos.names import BASE_WINDOW
from slos.yaml_text import block

_VERSION = "openslo/v1"
_OPERATORS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_COMPARED = re.compile(r"\((?P<query>.*)\) (?P<op>[<>]=?) bool (?P<value>-?[0-9.]+)")


def text(services: Sequence[Service], *, about: str = "") -> str:
    """Return the YAML of a file; ``about`` is its first line."""
    used = Counter(objective.name for service in services for objective in service.objectives)
    documents = [document for service in services for document in _documents(service, used)]
    head = [f"# {about}\n"] * bool(about)
    return "".join([*head, "---\n".join("\n".join(block(each)) + "\n" for each in documents)])


def left_out(service: Service) -> Iterator[Note]:
    """Yield what OpenSLO cannot say."""

    def note(line: int, field: str, objective: str = "") -> Note:
        message, fix = "is left out: OpenSLO has no place for it", "keep it in a file of ours"
        problem = Problem(service.file, line, field, message, fix)
        return Note(problem, False, service.service, objective)

    said = {
        "owner": service.owner,
        "runbooks": service.runbooks,
        "dashboards": service.dashboards,
        "alerting": service.alerting != Alerting(),
        "budget_policy": service.policy,
    }
    yield from (note(service.line, key) for key, found in said.items() if found)
    for index, objective in enumerate(service.objectives):
        where = f"objectives[{index}]"
        if objective.owner:
            yield note(objective.line, f"{where}.owner", objective.name)
        if objective.alerting != Overrides():
            yield note(objective.line, f"{where}.alerting", objective.name)
        if objective.group_by:
            yield replace(note(objective.line, f"{where}.group_by", objective.name), lost=True)


def _documents(service: Service, used: Mapping[str, int]) -> Iterator[dict[str, object]]:
    about: dict[str, object] = {
        "apiVersion": _VERSION,
        "kind": "Service",
        "metadata": {"name": service.service},
    }
    if service.description:
        about["spec"] = {"description": service.description}
    yield about
    for objective in service.objectives:
        name = objective.name
        yield _slo(service, objective, name if used[name] == 1 else f"{service.service}-{name}")


def _slo(service: Service, objective: Objective, name: str) -> dict[str, object]:
    labels = {key: [value] for key, value in {**service.labels, **objective.labels}.items()}
    method, slices = _budgeting(objective)
    sli, compared = _sli(replace(objective, slices=None), service)
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
    """Return the method, and how its slices are."""
    if objective.slices is not None:
        length = format_duration(objective.slices.window)
        target = objective.slices.target
        return "Timeslices", {"timeSliceTarget": target, "timeSliceWindow": length}
    if objective.indicator == "error_ratio":
        return "RatioTimeslices", {"timeSliceWindow": BASE_WINDOW}
    return "Occurrences", {}


def _sli(objective: Objective, service: Service) -> tuple[dict[str, object], dict[str, object]]:
    """Return the SLI, and what its objective compares with."""
    queries = objective.queries
    match objective.indicator:
        case "bad_events" | "good_events":
            return {"ratioMetric": _ratio(queries)}, {}
        case "error_ratio":
            return {"ratioMetric": {"rawType": "failure", "raw": _metric(queries["ratio"])}}, {}
        case "gauge":
            query, op, value = _compared(queries["gauge"])
            return {"thresholdMetric": _metric(query)}, {"op": op, "value": value}
    measured = events(objective, service)
    told = {"bad": str(measured.bad), "total": str(measured.total)}
    metrics = {role: _metric(query) for role, query in told.items()}
    return {"ratioMetric": {"counter": False, **metrics}}, {}


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


def _rate(query: Query, written: str) -> str:
    return f"sum(rate({written}[{WINDOW}]))" if query.selector else written


def _compared(gauge: str) -> tuple[str, str, Decimal]:
    """Take a comparison apart; anything else is good where it is not 0."""
    found = _COMPARED.fullmatch(gauge)
    if found and _is_query(found["query"]):
        return found["query"], _OPERATORS[found["op"]], Decimal(found["value"])
    return f"({gauge}) != bool 0", "gt", Decimal(0)


def _is_query(text: str) -> bool:
    try:
        parsed(text)
    except InvalidQuery:
        return False
    return True


def _metric(query: str) -> dict[str, object]:
    spec = {"query": query.replace(WINDOW, "{{.window}}")}
    return {"metricSource": {"type": "Prometheus", "spec": spec}}
