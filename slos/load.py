"""Read an SLO file and check all of it: what comes out is what everything else may rely on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from promql.expr import decimal_text
from slos.document import scan_document
from slos.durations import parse_duration, parse_share
from slos.errors import BadValue, InvalidFile, quoted
from slos.indicators import INDICATORS
from slos.model import Alerting, Objective, Service, Tier
from slos.schema import (
    MAX_TEXT,
    Field,
    Place,
    Reader,
    expect,
    integer,
    label_map,
    nearest,
    one_line,
    read_mapping,
    read_value,
    text_map,
)
from slos.signals import SIGNALS

API_VERSION = "tokenslo/v1"
DEFAULT_WINDOW = "28d"
MAX_OBJECTIVES = 1_000
_MAX_BAD_EVENTS = 1_000_000

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME_FORM = 'in lower-case letters, digits and "-", at most 63, a letter first'
_URL_TEXT = re.compile(r"[!#-;=?-\[\]_a-z~]+")
_CALENDAR = re.compile(r"[0-9]*[MQY]|(?i:[a-z -]*(?:calendar|month|quarter|week|year)[a-z -]*)")

_SUPPORTED = tuple(key for key, indicator in INDICATORS.items() if not indicator.unsupported)

_SELECTOR_RESERVED = {
    **dict.fromkeys(
        (name for signal in SIGNALS.values() for name in (*signal.labels, *signal.fixed)),
        ("is a label that indicators select by themselves", "delete it"),
    ),
    "le": ("is the bucket label of histograms", "delete it"),
    **dict.fromkeys(
        ("service", "slo"), ("is a label of the recorded series", "select by another label")
    ),
}
_ALERT_RESERVED = dict.fromkeys(
    ("alertname", "service", "slo", "window", "burn_rate"),
    ("is a label that alerts set themselves", "use another name"),
)
_SERVICE_RESERVED = {
    **_ALERT_RESERVED,
    "severity": (
        "differs between pages and tickets",
        "set it in the labels of alerting.page and alerting.ticket",
    ),
}


def load(path: str | Path, libraries: Sequence[Path] = ()) -> Service:
    """Read one SLO file; ``libraries`` are further folders for Jsonnet imports.

    Raises :class:`~slos.errors.InvalidFile` with everything that is wrong, in file order.
    """
    document, problems = scan_document(path, libraries)
    read = read_value(_service, document.value, Place(document, problems))
    if problems:
        raise InvalidFile(sorted(problems, key=lambda problem: problem.line))
    return Service(file=document.file, line=document.line(("service",)), **read)


def _service(value: object, place: Place) -> dict[str, Any]:
    read = read_mapping(SERVICE, value, place)
    read.pop("apiVersion", None)
    return {"window": parse_duration(DEFAULT_WINDOW), **read}


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


def _ratio(value: object, _: Place) -> Decimal:
    wanted = "a share below 100%, such as 90%"
    share = _bounded(value, parse_share, "0%", "100%", wanted)
    if share == 1:
        raise BadValue("nothing can be above 100%", f"write {wanted}")
    return share


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
    wanted = "a rolling window from 7d to 90d, such as 28d"
    text = _with_unit(value, wanted)
    if _CALENDAR.fullmatch(text):
        message = "calendar windows are not supported, as Prometheus only looks back a fixed time"
        raise BadValue(message, f"write {wanted}")
    window = parse_duration(text)
    if not parse_duration("7d") <= window <= parse_duration("90d"):
        raise BadValue(f"{text} is not within 7d and 90d", f"write {wanted}")
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


def _runbooks(value: object, place: Place) -> str:
    """Read the URL below which runbook pages are; ``{alert}`` stands for an alert's name."""
    if isinstance(value, str):
        _url(value.replace("{alert}", "alert"), place)
        return value
    return _url(value, place)


def _indicator(value: object, _: Place) -> str:
    choices = f"use one of {', '.join(_SUPPORTED)}"
    if isinstance(value, dict):
        raise BadValue("queries of your own are not supported in this release", choices)
    key: str = expect(str, f"one of {', '.join(_SUPPORTED)}", value)
    if key not in INDICATORS:
        near = nearest(key, _SUPPORTED)
        raise BadValue(f"{quoted(key)} is not an indicator", f"write {near}" if near else choices)
    if why := INDICATORS[key].unsupported:
        raise BadValue(f"{key} cannot be measured: {why}", choices)
    return key


def _objective(value: object, place: Place) -> dict[str, Any]:
    read = read_mapping(OBJECTIVE, value, place)
    read["line"] = place.line
    given, text = "threshold" in read, read.pop("threshold", None)
    if (indicator := read.get("indicator")) is None:
        return read
    measure = INDICATORS[indicator].threshold
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


def _objectives(value: object, place: Place) -> tuple[Objective, ...]:
    items: list[object] = expect(list, "a list of objectives", value)
    if not items:
        raise BadValue("holds no objective", "add one")
    if len(items) > MAX_OBJECTIVES:
        raise BadValue(
            f"holds {len(items):,} objectives, more than {MAX_OBJECTIVES:,}",
            "split the service into several",
        )
    before = len(place.problems)
    read = [read_value(_objective, item, place.at(i)) or {} for i, item in enumerate(items)]
    _distinct(read, place)
    return tuple(Objective(**each) for each in read) if len(place.problems) == before else ()


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


def _tier(default: Tier) -> Reader:
    """Read a tier of alerts; its own labels are added to the default ones."""

    def read(value: object, place: Place) -> Tier:
        found = read_mapping(TIER, value, place)
        own, notes = found.get("labels") or {}, found.get("annotations") or {}
        return Tier({**default.labels, **own}, notes)

    return read


def _alerting(value: object, place: Place) -> Alerting:
    return Alerting(**read_mapping(ALERTING, value, place))


TIER = (
    Field("labels", label_map(_ALERT_RESERVED)),
    Field("annotations", text_map),
)
ALERTING = (
    Field("page", _tier(Alerting().page)),
    Field("ticket", _tier(Alerting().ticket)),
    Field("min_bad_events", integer(0, _MAX_BAD_EVENTS)),
)
OBJECTIVE = (
    Field("name", _name, required="first-token"),
    Field("indicator", _indicator, required="ttft"),
    Field("threshold", _threshold),
    Field("target", _target, required="99.9%"),
    Field("description", one_line),
)
SERVICE = (
    Field("apiVersion", _api_version, required=API_VERSION),
    Field("service", _name, required="chat"),
    Field("owner", one_line),
    Field("description", one_line),
    Field("selector", label_map(_SELECTOR_RESERVED)),
    Field("window", _window),
    Field("labels", label_map(_SERVICE_RESERVED)),
    Field("runbooks", _runbooks),
    Field("dashboards", _url),
    Field("objectives", _objectives, required="[{name: …, indicator: …, target: …}]"),
    Field("alerting", _alerting),
)
