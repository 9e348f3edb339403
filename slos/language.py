"""The keys of an SLO file, and the readers of its services."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from slos.durations import parse_duration
from slos.errors import BadValue, quoted
from slos.fields.alerting import ALERTING, RECORDING, read_alerting
from slos.fields.autoscaling import AUTOSCALING, check_autoscaling, read_autoscaling
from slos.fields.budget_policy import MAX_STEPS, STEP, read_policy
from slos.fields.error_budget import ERROR_BUDGET, read_error_budget
from slos.fields.objective import (
    ALERT_LABELS_SHAPE,
    OBJECTIVE_SHAPE,
    SELECTOR_SHAPE,
    check_service_fit,
    read_objective,
)
from slos.fields.prompt_classes import PROMPT_CLASSES, check_prompt_class
from slos.fields.quotas import QUOTAS, check_quotas
from slos.fields.reserved_labels import SELECTOR_RESERVED, SERVICE_RESERVED
from slos.fields.rollout import ROLLOUT, check_rollout, read_rollout
from slos.fields.values import (
    API_VERSION,
    NAME_SHAPE,
    URL_SHAPE,
    read_api_version,
    read_histograms,
    read_name,
    read_runbooks,
    read_url,
    read_window,
)
from slos.indicators import counts_events_by_arm
from slos.model import HISTOGRAMS, Objective
from slos.schema import (
    DURATION,
    LINE,
    MAX_TEXT,
    Field,
    Place,
    Shape,
    alert_labels,
    expect,
    label_map,
    list_of,
    mapping_of,
    one_line,
    read_mapping,
    read_value,
)

DEFAULT_WINDOW = "28d"
MAX_OBJECTIVES = 1_000
_SHARED_FOLDER = re.compile(r"[^{}]+")


def read_services(value: object, place: Place) -> list[tuple[dict[str, Any], Place]]:
    """Read the services of one document into fields of :class:`~slos.model.Service`, with places.

    Keys next to a list of services apply to all of them: labels and selectors are merged, other
    keys are defaults.
    """
    if not isinstance(value, dict) or "services" not in value:
        return [(_merge_shared({}, read_mapping(SERVICE, value, place), place), place)]
    shared = read_mapping(FILE, value, place)
    return [(_merge_shared(shared, own, at), at) for own, at in shared.pop("services") or ()]


def _merge_shared(
    shared: Mapping[str, Any], own: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """Merge a service with the keys that its file shares, and check the result."""
    read = {"window": parse_duration(DEFAULT_WINDOW), **shared, **own}
    if "runbooks" not in own and _SHARED_FOLDER.fullmatch(shared.get("runbooks") or ""):
        read["runbooks"] = (
            f"{shared['runbooks'].rstrip('/')}/{{service}}"  # as generate writes them
        )
    for key in ("selector", "labels"):
        read[key] = {**(shared.get(key) or {}), **(own.get(key) or {})}
    read.pop("apiVersion", None)
    read["policy"] = read.pop("budget_policy", ())
    read["line"] = place.at("service").line
    objectives: list[dict[str, Any]] = read.get("objectives") or []
    for index, objective in enumerate(objectives):
        at = place.at("objectives").at(index)
        check_service_fit(objective, read, at)
        check_prompt_class(objective, read, at)
    if not place.problems:  # with problems, objectives may lack fields
        read["objectives"] = tuple(Objective(**each) for each in objectives)
        if read.get("quotas"):
            check_quotas(read["selector"], place.at("quotas"))
        if rollout := read.get("rollout"):
            comparable = tuple(filter(counts_events_by_arm, read["objectives"]))
            names = tuple(objective.name for objective in comparable)
            check_rollout(rollout, names, read["selector"], place.at("rollout"))
        if autoscaling := read.get("autoscaling"):
            check_autoscaling(autoscaling, read["objectives"], place.at("autoscaling"))
    return read


def _services(value: object, place: Place) -> list[tuple[dict[str, Any], Place]]:
    """Read a list of services."""
    items: list[object] = expect(list, "a list of services", value)
    if not items:
        raise BadValue("has no service", "add one")
    places = [place.at(index) for index in range(len(items))]
    read = [
        read_value(partial(read_mapping, ONE_OF_SERVICES), item, at)
        for item, at in zip(items, places, strict=True)
    ]
    return [(own, at) for own, at in zip(read, places, strict=True) if own is not None]


def _objectives(value: object, place: Place) -> list[dict[str, Any]]:
    items: list[object] = expect(list, "a list of objectives", value)
    if not items:
        raise BadValue("has no objective", "add one")
    if len(items) > MAX_OBJECTIVES:
        raise BadValue(
            f"holds {len(items):,} objectives, more than {MAX_OBJECTIVES:,}",
            "split the service into several",
        )
    read = [read_value(read_objective, item, place.at(i)) or {} for i, item in enumerate(items)]
    _check_distinct_names(read, place)
    return read


def _check_distinct_names(read: Sequence[Mapping[str, Any]], place: Place) -> None:
    """Refuse names with equal alert or file names, also on file systems without case."""
    first: dict[str, int] = {}
    for index, name in enumerate(each.get("name") for each in read):
        if name is None:
            continue
        earlier = first.setdefault(name.replace("-", ""), index)
        if earlier == index:
            continue
        other = read[earlier]["name"]
        line = place.at(earlier).at("name").line
        where = f"on line {line}" if line else f"of objectives[{earlier}]"
        message = (
            f"{quoted(name)} is also the name {where}"
            if name == other
            else f"{quoted(name)} and {quoted(other)} {where} would give the same alert names"
        )
        place.at(index).at("name").refuse(message, "give every objective a name of its own")


DEFINITIONS: Mapping[str, Shape] = {"objective": OBJECTIVE_SHAPE, "alerting": mapping_of(ALERTING)}
"""Shapes that others reference by name."""
SERVICE = (
    Field(
        "apiVersion",
        read_api_version,
        required=API_VERSION,
        about="The version of this language.",
        shape={"const": API_VERSION},
    ),
    Field(
        "service",
        read_name,
        required="chat",
        about="Name of the service: lower-case letters, digits and dashes.",
        shape=NAME_SHAPE,
    ),
    Field("owner", one_line, about="The owner; one line.", shape=LINE),
    Field("description", one_line, about="What the service does; one line.", shape=LINE),
    Field(
        "selector",
        label_map(SELECTOR_RESERVED),
        about="Label matchers of every query.",
        shape=SELECTOR_SHAPE,
    ),
    Field(
        "window",
        read_window,
        about="The rolling period of every objective, whole days from 1d to 90d.",
        shape={**DURATION, "default": DEFAULT_WINDOW},
    ),
    Field(
        "labels",
        alert_labels(SERVICE_RESERVED),
        about="Labels added to every alert.",
        shape=ALERT_LABELS_SHAPE,
    ),
    Field(
        "runbooks",
        read_runbooks,
        about="URL of the runbook folder; {service} and {alert} in it are replaced.",
        shape={**URL_SHAPE, "maxLength": MAX_TEXT + MAX_TEXT},
    ),
    Field("dashboards", read_url, about="URL of Grafana.", shape=URL_SHAPE),
    Field(
        "histograms",
        read_histograms,
        about="How Prometheus stores histograms: one series per bucket, or one per histogram.",
        shape={"enum": [*HISTOGRAMS], "default": HISTOGRAMS[0]},
    ),
    RECORDING,
    PROMPT_CLASSES,
    Field(
        "objectives",
        _objectives,
        required="[{name: …, indicator: …, target: …}]",
        about="The objectives.",
        shape=list_of({"$ref": "#/$defs/objective"}, 1, MAX_OBJECTIVES),
    ),
    Field(
        "alerting",
        read_alerting,
        about="Labels, tiers and windows of the alerts.",
        shape={"$ref": "#/$defs/alerting"},
    ),
    Field(
        "error_budget",
        read_error_budget,
        about="Which refused requests are bad events.",
        shape={**mapping_of(ERROR_BUDGET), "minProperties": 1},
    ),
    Field(
        "budget_policy",
        read_policy,
        about="What the team does as an error budget is spent.",
        shape=list_of(mapping_of(STEP), 1, MAX_STEPS),
    ),
    Field(
        "rollout",
        read_rollout,
        about="How a canary is compared with its baseline before its promotion.",
        shape=mapping_of(ROLLOUT),
    ),
    Field(
        "autoscaling",
        read_autoscaling,
        about="How the number of replicas follows the load.",
        shape=mapping_of(AUTOSCALING),
    ),
    QUOTAS,
)
ONE_OF_SERVICES = tuple(field for field in SERVICE if field.name != "apiVersion")
"""The keys of a service in a list of them."""
_OF_ONE = ("service", "description", "objectives", "autoscaling")
FILE = (
    *(field for field in SERVICE if field.name not in _OF_ONE),
    Field(
        "services",
        _services,
        required="[{service: …, objectives: …}]",
        about="Services that share the other keys of the file; each may override them.",
        shape=list_of(mapping_of(ONE_OF_SERVICES), 1),
    ),
)
"""The keys of a file with several services."""
