"""The language of SLO files: a table of keys for each of its mappings, and how each is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from promql.expr import decimal_text
from slos.alerting_fields import CAUSES, RECORDING, WINDOWS
from slos.durations import parse_duration, parse_share
from slos.errors import BadValue, quoted
from slos.generic import (
    GENERIC_SHAPE,
    WINDOW,
    Generic,
    can_be_grouped,
    can_be_sliced,
    read_generic,
)
from slos.indicators import CLAUSES, INDICATORS
from slos.model import (
    DISABLED,
    HISTOGRAMS,
    SERVICE_DISABLED,
    Alerting,
    Objective,
    Overrides,
    PolicyStep,
    Tier,
    TimeSlices,
)
from slos.names import BASE_WINDOW, CAUSE_LABEL, STEP_LABEL
from slos.schema import (
    DURATION,
    LABEL_NAME,
    LINE,
    MAX_TEXT,
    SHARE,
    Field,
    Place,
    Reader,
    Shape,
    alert_labels,
    expect,
    integer,
    label_map,
    list_of,
    mapping_of,
    names_to_text,
    nearest,
    one_line,
    read_mapping,
    read_value,
    text_map,
)
from slos.signals import LORA_LABELS, SIGNALS

API_VERSION = "tokenslo/v1"
DEFAULT_WINDOW = "28d"
MAX_OBJECTIVES = 1_000
MAX_STEPS = 10
SLICES = ("1m", "5m")
"""How long time slices may be: whole parts of the base window."""
_MAX_BAD_EVENTS = 1_000_000
_STEP = '{when: 50%, do: "no risky rollouts"}'
_CLAUSES = "{ttft: 800ms, tpot: 60ms}"

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME_FORM = 'in lower-case letters, digits and "-", at most 63, a letter first'
_URL_TEXT = re.compile(r"[!#-;=?-\[\]_a-z~]+")
_SHARED_FOLDER = re.compile(r"[^{}]+")
_CALENDAR = re.compile(
    r"[0-9]*[MQY]|(?i:(?=[a-z -]*?(?:calendar|month|quarter|week|year))[a-z -]*)"
)

_SELECTOR_RESERVED = {
    **dict.fromkeys(
        {
            name
            for signal in SIGNALS.values()
            for name in (*signal.labels, *signal.fixed)
            if name != "tenant" and name not in LORA_LABELS  # no objective reads these
        },
        ("is a label that indicators select by themselves", "delete it"),
    ),
    "le": ("is the bucket label of histograms", "delete it"),
    **dict.fromkeys(
        ("service", "slo"), ("is a label of the recorded series", "select by another label")
    ),
}
_ALERT_RESERVED = dict.fromkeys(
    ("alertname", "service", "slo", "window", "burn_rate", CAUSE_LABEL, STEP_LABEL),
    ("is a label that alerts set themselves", "use another name"),
)
_SERVICE_RESERVED = {
    **_ALERT_RESERVED,
    "severity": (
        "differs between pages and tickets",
        "set it in the labels of alerting.page and alerting.ticket",
    ),
}

_GROUP_RESERVED = {
    **_SERVICE_RESERVED,
    **{
        name: ("is a label that indicators sum over", "group by another label")
        for name in _SELECTOR_RESERVED
        if name not in _ALERT_RESERVED
    },
}


def read_services(value: object, place: Place) -> list[tuple[dict[str, Any], Place]]:
    """Read the services of one document: what :class:`~slos.model.Service` is made of, and where.

    What stands beside a list of services is all of theirs: labels and selectors are added to, and
    the rest is for those that do not say it themselves.
    """
    if not isinstance(value, dict) or "services" not in value:
        return [(_whole({}, read_mapping(SERVICE, value, place), place), place)]
    shared = read_mapping(FILE, value, place)
    return [(_whole(shared, own, at), at) for own, at in shared.pop("services") or ()]


def _whole(shared: Mapping[str, Any], own: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Put together what a service says and what its file says for it, and check what fits."""
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
        _fits(objective, read, place.at("objectives").at(index))
    if not place.problems:  # or else they lack something, and nobody gets to see them
        read["objectives"] = tuple(Objective(**each) for each in objectives)
    return read


def _services(value: object, place: Place) -> list[tuple[dict[str, Any], Place]]:
    """Read a list of services that share what stands beside it."""
    items: list[object] = expect(list, "a list of services", value)
    if not items:
        raise BadValue("holds no service", "add one")
    places = [place.at(index) for index in range(len(items))]
    read = [
        read_value(partial(read_mapping, ONE_OF_SERVICES), item, at)
        for item, at in zip(items, places, strict=True)
    ]
    return [(own, at) for own, at in zip(read, places, strict=True) if own is not None]


def _api_version(value: object, _: Place) -> str:
    if value != API_VERSION:
        shown = quoted(value) if isinstance(value, str) else "this"
        raise BadValue(f"{shown} is not a version tokenslo knows", f"write {API_VERSION}")
    return API_VERSION


def _name(value: object, _: Place) -> str:
    text: str = expect(str, f"a name {_NAME_FORM}", value)
    if not _NAME.fullmatch(text):
        near = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        fix = near if _NAME.fullmatch(near) else f"a name {_NAME_FORM}"
        raise BadValue(f"{quoted(text)} is not a name", f"write {fix}")
    return text


def _with_unit(value: object, wanted: str) -> str:
    """Take text; a bare number is refused for what it lacks, not for its type."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise BadValue(f"{repr(value)[:40]} has no unit", f"write {wanted}")
    text: str = expect(str, wanted, value)
    return text


def _bounded(
    value: object, parse: Callable[[str], Decimal], least: str, most: str, fix: str
) -> Decimal:
    """Read a quantity above ``least`` and not above ``most``, both written as people do."""
    text = _with_unit(value, fix)
    quantity = parse(text)
    if quantity <= parse(least):
        raise BadValue(f"{text} is not above {least}", f"write {fix}")
    if quantity > parse(most):
        raise BadValue(f"{text} is above {most}", f"write {fix}")
    return quantity


def _seconds(value: object, _: Place) -> Decimal:
    return _bounded(value, parse_duration, "0s", "2h", "at most 2h, such as 800ms (m is minutes)")


def _part(value: object, wanted: str, why: str) -> Decimal:
    """Read a share below 100%; ``why`` says what is wrong with all of it."""
    share = _bounded(value, parse_share, "0%", "100%", wanted)
    if share == 1:
        raise BadValue(why, f"write {wanted}")
    return share


def _ratio(value: object, _: Place) -> Decimal:
    return _part(value, "a share below 100%, such as 90%", "nothing can be above 100%")


def _threshold(value: object, _: Place) -> str:
    """Take a threshold as text; what it may be depends on the indicator beside it."""
    return _with_unit(value, "a threshold with its unit, such as 800ms or 90%")


_MEASURES: Mapping[str, tuple[Reader, str]] = {
    "seconds": (_seconds, "800ms"),
    "ratio": (_ratio, "90%"),
}
"""How an indicator's threshold is read, and an example."""


def _target(value: object, _: Place) -> Decimal:
    wanted = "a percentage below 100%, such as 99.9%"
    if isinstance(value, float) and 0 < value < 1:
        wanted = f"{decimal_text(Decimal(repr(value)) * 100)}%"
    elif isinstance(value, int | float) and 1 < value < 100:
        wanted = f"{decimal_text(repr(value))}%"
    target = _bounded(value, parse_share, "0%", "100%", wanted)
    if target == 1:
        raise BadValue("100% leaves no error budget", f"write {wanted}")
    return target


def _window(value: object, _: Place) -> Decimal:
    wanted = "a rolling window from 1d to 90d, such as 28d"
    text = _with_unit(value, wanted)
    if _CALENDAR.fullmatch(text):
        message = "calendar windows are not supported, as Prometheus only looks back a fixed time"
        raise BadValue(message, f"write {wanted}")
    window = parse_duration(text)
    if not parse_duration("1d") <= window <= parse_duration("90d"):
        raise BadValue(f"{text} is not within 1d and 90d", f"write {wanted}")
    if window % parse_duration("1d"):
        raise BadValue(f"{text} is not a number of whole days", f"write {wanted}")
    return window


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port  # asking for the port checks it
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and bool(_URL_TEXT.fullmatch(text))


def _url(value: object, place: Place) -> str:
    text: str = expect(str, "an http or https URL", value)
    if not _is_url(text):
        raise BadValue("is not an http or https URL", "write one, such as https://example.com/chat")
    if len(text) > MAX_TEXT:
        raise BadValue(f"is longer than {MAX_TEXT:,} characters", "shorten it")
    if "@" in urlsplit(text).netloc:
        raise BadValue("holds credentials, which every alert would show", "remove them")
    return text


def _histograms(value: object, _: Place) -> str:
    known = " or ".join(HISTOGRAMS)
    text: str = expect(str, known, value)
    if text not in HISTOGRAMS:
        raise BadValue(f"{quoted(text)} is no way to store histograms", f"write {known}")
    return text


def _runbooks(value: object, place: Place) -> str:
    """Read the URL below which runbook pages are; it may hold ``{service}`` and ``{alert}``."""
    if isinstance(value, str):
        _url(value.replace("{alert}", "alert").replace("{service}", "service"), place)
        return value
    return _url(value, place)


def _indicator(value: object, place: Place) -> str | Generic | None:
    if isinstance(value, dict):
        return read_generic(value, place)
    choices = f"use one of {', '.join(INDICATORS)}"
    key: str = expect(str, f"one of {', '.join(INDICATORS)}", value)
    if key not in INDICATORS:
        near = nearest(key, INDICATORS)
        raise BadValue(f"{quoted(key)} is not an indicator", f"write {near}" if near else choices)
    return key


def _clauses(value: object, place: Place) -> dict[str, Decimal]:
    given = {**expect(dict, f"a mapping such as {_CLAUSES}", value)}
    if not given:
        raise BadValue("holds no clause", f"write at least one, such as {_CLAUSES}")
    if "itl" in given:
        del given["itl"]
        place.at("itl").refuse(
            "is about a share of all gaps, which a single request does not have",
            "use max_gap for its longest gap, or tpot for its mean one",
        )
    return read_mapping(CLAUSE, given, place)


def _objective(value: object, place: Place) -> dict[str, Any]:
    read = read_mapping(OBJECTIVE, value, place)
    read["line"] = place.line
    if "time_slices" in read:
        read["slices"] = read.pop("time_slices")
    given, text = "threshold" in read, read.pop("threshold", None)
    if (indicator := read.get("indicator")) is None:
        if text is not None and not any(
            _is(text, parse) for parse in (parse_duration, parse_share)
        ):
            message = f"{quoted(text)} is neither a duration nor a percentage"
            place.at("threshold").refuse(message, "write one, such as 800ms or 90%")
        return read
    if isinstance(indicator, Generic):
        if given:
            message = "stands beside an indicator of your own"
            place.at("threshold").refuse(message, "move it into the indicator, beside histogram")
        if "clauses" in read:
            place.at("clauses").refuse("only goodput has clauses", "delete it")
        _fits_queries(indicator, read, place)
        _has_histogram(indicator.kind, "histogram" in indicator.queries, read, place)
        own = {"indicator": indicator.kind, "queries": indicator.queries}
        return {**read, **own, "threshold": indicator.threshold}
    if indicator == "goodput" and "clauses" not in read:
        place.refuse("is missing, but goodput needs it", f"add clauses: {_CLAUSES}", "clauses")
    elif indicator != "goodput" and "clauses" in read:
        place.at("clauses").refuse(f"{indicator} has no clauses", "delete it")
    if INDICATORS[indicator].in_slices and read.get("slices"):
        place.at("time_slices").refuse(f"{indicator} is counted in time slices anyway", "delete it")
    measure = INDICATORS[indicator].threshold
    _has_histogram(indicator, measure == "seconds", read, place)
    if measure is None:
        if text is not None:
            place.at("threshold").refuse(f"{indicator} has no threshold", "delete it")
        return read
    reader, example = _MEASURES[measure]
    if text is not None:
        read["threshold"] = read_value(reader, text, place.at("threshold"))
    elif not given:
        message, fix = f"is missing, but {indicator} needs it", f"add threshold: {example}"
        place.refuse(message, fix, "threshold")
    return read


def _is(text: str, parse: Callable[[str], Decimal]) -> bool:
    try:
        parse(text)
    except BadValue:
        return False
    return True


def _has_histogram(indicator: str, it_has: bool, read: Mapping[str, Any], place: Place) -> None:
    if "histograms" in read and not it_has:
        place.at("histograms").refuse(f"{indicator} is counted from no histogram", "delete it")


def _objectives(value: object, place: Place) -> list[dict[str, Any]]:
    items: list[object] = expect(list, "a list of objectives", value)
    if not items:
        raise BadValue("holds no objective", "add one")
    if len(items) > MAX_OBJECTIVES:
        raise BadValue(
            f"holds {len(items):,} objectives, more than {MAX_OBJECTIVES:,}",
            "split the service into several",
        )
    read = [read_value(_objective, item, place.at(i)) or {} for i, item in enumerate(items)]
    _distinct(read, place)
    return read


def _fits(objective: Mapping[str, Any], service: Mapping[str, Any], place: Place) -> None:
    """Refuse an objective that is about what its indicator cannot tell apart."""
    groups: Sequence[str] = objective.get("group_by") or ()
    selected = {**service["selector"], **(objective.get("selector") or {})}
    asks = {"the selector asks for one": selected, "group_by asks for each": groups}
    indicator = INDICATORS.get(objective.get("indicator") or "")
    for asked, labels in asks.items():
        if "tenant" in labels and indicator and not indicator.by_tenant:
            place.at("indicator").refuse(
                f"{indicator.key} is not counted by tenant, but {asked}",
                f"use one of {', '.join(key for key, one in INDICATORS.items() if one.by_tenant)}",
            )
    alerting = (objective.get("alerting") or Overrides()).of(service.get("alerting") or Alerting())
    tiers = alerting.page.labels, alerting.ticket.labels
    given = {*service["labels"], *(objective.get("labels") or ()), *tiers[0], *tiers[1]}
    for index, label in enumerate(groups):
        if label in given and label not in _GROUP_RESERVED:
            message = f"{quoted(label)} is also a label that alerts are given"
            place.at("group_by").at(index).refuse(message, "rename that one")


def _fits_queries(indicator: Generic, read: Mapping[str, Any], place: Place) -> None:
    """Refuse what cannot be asked of an objective with queries of its own."""
    if read.get("selector"):
        message = "is not added to queries of your own"
        place.at("selector").refuse(message, "write its labels into the queries")
    if indicator.kind == "gauge" and read.get("slices"):
        place.at("time_slices").refuse("a gauge is counted in time slices anyway", "delete it")
    elif read.get("slices") and not can_be_sliced(indicator):
        message = f"is asked of a query without {WINDOW}, which would not be about one slice"
        place.at("time_slices").refuse(message, f"write {WINDOW} into each query, as in [{WINDOW}]")
    if read.get("group_by") and not can_be_grouped(indicator):
        place.at("group_by").refuse(
            "the queries beside it are not plain counters, so nobody knows which labels they keep",
            "give plain selectors, or write one objective for each group",
        )


def _distinct(read: Sequence[Mapping[str, Any]], place: Place) -> None:
    """Refuse names whose alerts or files would be the same, on file systems without case too."""
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


def _disable(kinds: Sequence[str]) -> Reader:
    """Read a list of alerts that there shall not be, some of ``kinds``."""
    known = ", ".join(kinds)

    def read(value: object, place: Place) -> frozenset[str]:
        given: list[object] = expect(list, f"a list of some of {known}", value)
        for index, name in enumerate(given):
            if name not in kinds:
                shown = quoted(name) if isinstance(name, str) else "this"
                place.at(index).refuse(f"{shown} is not a kind of alert", f"use one of {known}")
        return frozenset(kind for kind in kinds if kind in given)

    return read


def _policy(value: object, place: Place) -> tuple[PolicyStep, ...]:
    """Read what is done as the budget goes, the first step first."""
    items: list[object] = expect(list, f"a list of steps such as {_STEP}", value)
    if not items:
        raise BadValue("holds no step", f"add one, such as {_STEP}")
    if len(items) > MAX_STEPS:
        raise BadValue(f"holds {len(items):,} steps, more than {MAX_STEPS}", "keep fewer")
    found: dict[Decimal, PolicyStep] = {}
    for index, item in enumerate(items):
        step = read_value(_step, item, place.at(index))
        if step is None:
            continue
        first = found.setdefault(step.spent, step)
        if first is not step:
            message = "is the share of an earlier step as well"
            place.at(index).at("when").refuse(message, "join the two")
    return tuple(sorted(found.values(), key=lambda step: step.spent))


def _step(value: object, place: Place) -> PolicyStep | None:
    read = read_mapping(STEP, value, place)
    if read.get("when") is None or read.get("do") is None:
        return None
    return PolicyStep(read["when"], read["do"], place.line)


def _spent(value: object, _: Place) -> Decimal:
    wanted = "the share of the budget that is spent by then, such as 50%"
    return _bounded(value, parse_share, "0%", "100%", wanted)


def _time_slices(value: object, place: Place) -> TimeSlices | None:
    read = read_mapping(TIME_SLICES, value, place)
    if read.get("window") is None or read.get("target") is None:
        return None
    return TimeSlices(read["window"], read["target"])


def _slice(value: object, _: Place) -> Decimal:
    wanted = " or ".join(SLICES)
    text = _with_unit(value, wanted)
    window = parse_duration(text)
    if text not in SLICES:
        message = f"slices of {text} do not fill the {BASE_WINDOW} over which events are recorded"
        raise BadValue(message, f"write {wanted}")
    return window


def _slice_target(value: object, _: Place) -> Decimal:
    """Read a share that rounding alone cannot miss: rates are exact but for a hair."""
    return _part(value, "a percentage below 100%, such as 95%", "100% is what no rate can show")


def _group_by(value: object, place: Place) -> tuple[str, ...]:
    """Read label names; one SLO is kept for each combination of their values."""
    given: list[object] = expect(list, "a list of labels, such as [tenant]", value)
    if not given:
        raise BadValue("holds no label", "name one, such as tenant, or delete it")
    for index, name in enumerate(given):
        at = place.at(index)
        if not isinstance(name, str) or not LABEL_NAME.fullmatch(name) or name.startswith("__"):
            at.refuse("is not the name of a label", "use letters, digits and _")
        elif name in _GROUP_RESERVED:
            at.refuse(*_GROUP_RESERVED[name])
        elif name in given[:index]:
            at.refuse(f"{quoted(name)} stands there already", "delete one of them")
    return tuple(str(name) for name in given)


def _tier(default: Tier) -> Reader:
    """Read a tier of alerts; its own labels are added to the default ones."""

    def read(value: object, place: Place) -> Tier:
        found = read_mapping(TIER, value, place)
        own, notes = found.get("labels") or {}, found.get("annotations") or {}
        return Tier({**default.labels, **own}, notes)

    return read


def _alerting(value: object, place: Place) -> Alerting | None:
    before = len(place.problems)
    read = read_mapping(ALERTING, value, place)
    return Alerting(**read) if len(place.problems) == before else None


def _overrides(value: object, place: Place) -> Overrides | None:
    before = len(place.problems)
    read = read_mapping(OVERRIDES, value, place)
    return Overrides(**read) if len(place.problems) == before else None


_NAMED: Shape = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_HTTP: Shape = {"type": "string", "pattern": "^[hH][tT][tT][pP][sS]?://", "maxLength": MAX_TEXT}
_LABELS, _ANNOTATIONS = names_to_text(_ALERT_RESERVED), names_to_text(())
_SELECTORS, _ALERT_LABELS = names_to_text(_SELECTOR_RESERVED), names_to_text(_SERVICE_RESERVED)


def _kinds(kinds: Sequence[str]) -> Shape:
    return list_of({"enum": list(kinds)})


def _by_indicator() -> Iterator[Shape]:
    """Yield what each indicator asks of the keys beside it."""
    known = {None: False, "seconds": DURATION, "ratio": SHARE}
    for measure, threshold in known.items():
        keys = [key for key, one in INDICATORS.items() if one.threshold == measure]
        needs = {} if measure is None else {"required": ["threshold"]}
        yield _if_indicator({"enum": keys}, {"properties": {"threshold": threshold}, **needs})
    yield _if_indicator({"const": "goodput"}, {"required": ["clauses"]})
    others = {"not": {"const": "goodput"}}
    yield _if_indicator(others, {"properties": {"clauses": False}})
    own: Shape = {"threshold": False, "selector": {"maxProperties": 0}}
    yield _if_indicator({"type": "object"}, {"properties": own})


def _if_indicator(indicator: Shape, then: Shape) -> Shape:
    given: Shape = {"properties": {"indicator": indicator}, "required": ["indicator"]}
    return {"if": given, "then": then}


TIER = (
    Field(
        "labels",
        alert_labels(_ALERT_RESERVED),
        about="Labels of these alerts, beside those of the service and the objective.",
        shape=_LABELS,
    ),
    Field(
        "annotations",
        text_map,
        about="Annotations of these alerts, beside the generated ones; templates are passed on.",
        shape=_ANNOTATIONS,
    ),
)
_MIN_BAD_EVENTS = Field(
    "min_bad_events",
    integer(0, _MAX_BAD_EVENTS),
    about="Least number of bad events, in the long window, for a budget alert to fire.",
    shape={"type": "integer", "minimum": 0, "maximum": _MAX_BAD_EVENTS},
)
_TIER = mapping_of(TIER)
_PAGE, _TICKET, _CAUSE = (
    "Alerts that want a person now.",
    "Alerts that want a person within a working day.",
    "Alerts that say why others fire.",
)
_NONE_OF = "Alerts that there shall not be."
ALERTING = (
    Field("page", _tier(Alerting().page), about=_PAGE, shape=_TIER),
    Field("ticket", _tier(Alerting().ticket), about=_TICKET, shape=_TIER),
    Field("cause", _tier(Alerting().cause), about=_CAUSE, shape=_TIER),
    _MIN_BAD_EVENTS,
    WINDOWS,
    CAUSES,
    Field("disable", _disable(SERVICE_DISABLED), about=_NONE_OF, shape=_kinds(SERVICE_DISABLED)),
)
OVERRIDES = (
    Field("page", _tier(Tier()), about=_PAGE, shape=_TIER),
    Field("ticket", _tier(Tier()), about=_TICKET, shape=_TIER),
    _MIN_BAD_EVENTS,
    Field("disable", _disable(DISABLED), about=_NONE_OF, shape=_kinds(DISABLED)),
)
STEP = (
    Field(
        "when",
        _spent,
        required="50%",
        about="The share of an objective's error budget that is spent by then.",
        shape=SHARE,
    ),
    Field(
        "do",
        one_line,
        required="no risky rollouts",
        about="What the team has agreed to do from then on; one line.",
        shape=LINE,
    ),
)
TIME_SLICES = (
    Field(
        "window",
        _slice,
        required="1m",
        about="How long a slice is.",
        shape={"enum": list(SLICES)},
    ),
    Field(
        "target",
        _slice_target,
        required="95%",
        about="The share of the events in a slice that must be good for the slice to be good.",
        shape=SHARE,
    ),
)
CLAUSE = tuple(
    Field(
        name,
        _seconds,
        about=INDICATORS[name].good.format(threshold="this").capitalize() + ".",
        shape=DURATION,
    )
    for name in CLAUSES
)
OBJECTIVE = (
    Field(
        "name",
        _name,
        required="first-token",
        about="Name of the objective: lower-case letters, digits and dashes.",
        shape=_NAMED,
    ),
    Field(
        "indicator",
        _indicator,
        required="ttft",
        about="What is counted: an indicator that tokenslo knows, or queries of your own.",
        shape={"anyOf": [{"enum": list(INDICATORS)}, GENERIC_SHAPE]},
    ),
    Field(
        "threshold",
        _threshold,
        about="Where good ends, in the unit of the indicator: 800ms, or 90%.",
        shape={"type": "string"},
    ),
    Field(
        "clauses",
        _clauses,
        about="Latencies that a request must all keep; for goodput.",
        shape={**mapping_of(CLAUSE), "minProperties": 1},
    ),
    Field(
        "target",
        _target,
        required="99.9%",
        about="The share of events that is good, above 0% and below 100%.",
        shape=SHARE,
    ),
    Field(
        "time_slices",
        _time_slices,
        about="Promise time instead of events: the target is then the share of good slices.",
        shape=mapping_of(TIME_SLICES),
    ),
    Field(
        "group_by",
        _group_by,
        about="Labels such as tenant: the promise is kept for each of their values by itself.",
        shape=list_of({"type": "string", "pattern": f"^(?!__){LABEL_NAME.pattern}$"}, 1),
    ),
    Field(
        "histograms",
        _histograms,
        about="How Prometheus stores its histogram, if not as the service's others.",
        shape={"enum": [*HISTOGRAMS]},
    ),
    Field("description", one_line, about="Why it matters; one line.", shape=LINE),
    Field("owner", one_line, about="Who answers for it, if not the service's owner.", shape=LINE),
    Field(
        "selector",
        label_map(_SELECTOR_RESERVED),
        about="Labels that its queries are restricted to, beside the service's.",
        shape=_SELECTORS,
    ),
    Field(
        "labels",
        alert_labels(_SERVICE_RESERVED),
        about="Labels of its alerts, beside the service's.",
        shape=_ALERT_LABELS,
    ),
    Field(
        "alerting",
        _overrides,
        about="How its alerts differ from the service's.",
        shape=mapping_of(OVERRIDES),
    ),
)
_OBJECTIVE: Shape = {**mapping_of(OBJECTIVE), "allOf": [*_by_indicator()]}
DEFINITIONS: Mapping[str, Shape] = {"objective": _OBJECTIVE, "alerting": mapping_of(ALERTING)}
"""Shapes that others refer to by name, as they are long and stand in several places."""
SERVICE = (
    Field(
        "apiVersion",
        _api_version,
        required=API_VERSION,
        about="The version of this language.",
        shape={"const": API_VERSION},
    ),
    Field(
        "service",
        _name,
        required="chat",
        about="Name of the service: lower-case letters, digits and dashes.",
        shape=_NAMED,
    ),
    Field("owner", one_line, about="Who answers for it; one line.", shape=LINE),
    Field("description", one_line, about="What it is; one line.", shape=LINE),
    Field(
        "selector",
        label_map(_SELECTOR_RESERVED),
        about="Labels that every query is restricted to.",
        shape=_SELECTORS,
    ),
    Field(
        "window",
        _window,
        about="The rolling period of every objective, whole days from 1d to 90d.",
        shape={**DURATION, "default": DEFAULT_WINDOW},
    ),
    Field(
        "labels",
        alert_labels(_SERVICE_RESERVED),
        about="Labels added to every alert.",
        shape=_ALERT_LABELS,
    ),
    Field(
        "runbooks",
        _runbooks,
        about="URL below which runbook pages are; {service} and {alert} in it are replaced.",
        shape={**_HTTP, "maxLength": MAX_TEXT + MAX_TEXT},
    ),
    Field("dashboards", _url, about="URL of Grafana.", shape=_HTTP),
    Field(
        "histograms",
        _histograms,
        about="How Prometheus stores histograms: a series for each bucket, or one for all.",
        shape={"enum": [*HISTOGRAMS], "default": HISTOGRAMS[0]},
    ),
    RECORDING,
    Field(
        "objectives",
        _objectives,
        required="[{name: …, indicator: …, target: …}]",
        about="What is promised.",
        shape=list_of({"$ref": "#/$defs/objective"}, 1, MAX_OBJECTIVES),
    ),
    Field(
        "alerting",
        _alerting,
        about="How alerts are labelled, and which there are.",
        shape={"$ref": "#/$defs/alerting"},
    ),
    Field(
        "budget_policy",
        _policy,
        about="What the team does as an error budget goes.",
        shape=list_of(mapping_of(STEP), 1, MAX_STEPS),
    ),
)
ONE_OF_SERVICES = tuple(field for field in SERVICE if field.name != "apiVersion")
"""The keys of a service in a list of them."""
_OF_ONE = ("service", "description", "objectives")
FILE = (
    *(field for field in SERVICE if field.name not in _OF_ONE),
    Field(
        "services",
        _services,
        required="[{service: …, objectives: …}]",
        about="Services that share what stands beside; each may say it for itself.",
        shape=list_of(mapping_of(ONE_OF_SERVICES), 1),
    ),
)
"""The keys of a file of several services that have something in common."""
