"""Read how an SLO file configures alerts: burn-rate windows, tiers, causes, labels."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from slos.causes import CAUSE_ALERTS
from slos.durations import parse_duration
from slos.errors import BadValue, quoted
from slos.fields.reserved_labels import ALERT_RESERVED
from slos.model import (
    CAUSE_TIERS,
    DISABLED,
    RULES,
    SERVICE_DISABLED,
    Alerting,
    BurnWindow,
    Overrides,
    Tier,
)
from slos.schema import (
    DURATION,
    Field,
    Place,
    Reader,
    Shape,
    alert_labels,
    expect,
    integer,
    list_of,
    mapping_of,
    names_to_text,
    nearest,
    read_mapping,
    read_value,
    text_map,
)

_TIERS = ("page", "ticket")
_MOST = 8
_LEAST_SECONDS = Decimal(120)
"""Shortest window: two of the increases that are recorded each minute."""
_EXAMPLE = "{severity: page, long: 1h, short: 5m, burn_rate: 14.4}"
_CAUSES = tuple(alert.name for alert in CAUSE_ALERTS)


def _choice(known: tuple[str, ...]) -> Any:
    def read(value: object, _: Place) -> str:
        text: str = expect(str, " or ".join(known), value)
        if text not in known:
            raise BadValue(f'"{text}" is unknown', f"write {' or '.join(known)}")
        return text

    return read


def _window(value: object, _: Place) -> Decimal:
    text: str = expect(str, "a duration such as 1h", value)
    seconds = parse_duration(text)
    if seconds < _LEAST_SECONDS or seconds % 60:
        raise BadValue(f"{text} is not whole minutes, at least 2", "write a duration such as 5m")
    return seconds


def _burn_rate(value: object, _: Place) -> Decimal:
    number = Decimal(repr(expect((int, float), "a number such as 14.4", value)))
    if not (number.is_finite() and 1 <= number <= 1_000_000):
        raise BadValue("is not a burn rate of at least 1", "write a number such as 14.4")
    return number


def _pair(value: object, place: Place) -> BurnWindow | None:
    before = len(place.problems)
    read = read_mapping(PAIR, value, place)
    if len(place.problems) > before:
        return None
    if read["short"] >= read["long"]:
        place.refuse("has a short window that is not shorter than the long one", "shorten it")
        return None
    return BurnWindow(read["severity"], read["long"], read["short"], read["burn_rate"])


def _windows(value: object, place: Place) -> tuple[BurnWindow, ...]:
    items: list[object] = expect(list, f"a list of pairs such as {_EXAMPLE}", value)
    if not 1 <= len(items) <= _MOST:
        raise BadValue(f"holds {len(items)} pairs", f"write 1 to {_MOST}, such as {_EXAMPLE}")
    read = [read_value(_pair, item, place.at(index)) for index, item in enumerate(items)]
    pairs = [pair for pair in read if pair is not None]
    if len({pair.long for pair in pairs}) < len(pairs):
        raise BadValue("has two pairs of the same long window", "change one of them")
    return tuple(sorted(pairs, key=lambda pair: (pair.tier, -pair.burn_rate, pair.long)))


def _causes(value: object, place: Place) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, tier in expect(dict, "a mapping such as {DecodeStuck: page}", value).items():
        if name not in _CAUSES:
            near = nearest(str(name), _CAUSES)
            fix = f"write {near}" if near else f"use one of {', '.join(_CAUSES)}"
            place.at(name).refuse("is not a cause", fix)
        elif (read := read_value(_choice(CAUSE_TIERS), tier, place.at(name))) is not None:
            found[name] = read
    return found


PAIR = (
    Field(
        "severity",
        _choice(_TIERS),
        required="page",
        about="Whether the pair pages or opens a ticket.",
        shape={"enum": [*_TIERS]},
    ),
    Field("long", _window, required="1h", about="The long window.", shape=DURATION),
    Field("short", _window, required="5m", about="The short window.", shape=DURATION),
    Field(
        "burn_rate",
        _burn_rate,
        required="14.4",
        about="How many times faster than allowed the budget is spent.",
        shape={"type": "number", "minimum": 1, "maximum": 1_000_000},
    ),
)
WINDOWS = Field(
    "windows",
    _windows,
    about="Pairs of burn-rate windows, instead of the defaults.",
    shape=list_of(mapping_of(PAIR), 1, _MOST),
)
_CAUSE_TIER: Shape = {"enum": [*CAUSE_TIERS]}
CAUSES = Field(
    "causes",
    _causes,
    about="Tiers of single cause alerts; off leaves one out.",
    shape={
        "type": "object",
        "propertyNames": {"enum": [*_CAUSES]},
        "additionalProperties": _CAUSE_TIER,
    },
)
RECORDING = Field(
    "rules",
    _choice(RULES),
    about="How increases are recorded: exact (differences of counters) or plain (rate).",
    shape={"enum": [*RULES], "default": RULES[0]},
)

_MAX_BAD_EVENTS = 1_000_000
_LABELS, _ANNOTATIONS = names_to_text(ALERT_RESERVED), names_to_text(())


def _disable(kinds: Sequence[str]) -> Reader:
    """Read a list of disabled alerts, each one of ``kinds``."""
    known = ", ".join(kinds)

    def read(value: object, place: Place) -> frozenset[str]:
        given: list[object] = expect(list, f"a list of some of {known}", value)
        for index, name in enumerate(given):
            if name not in kinds:
                shown = quoted(name) if isinstance(name, str) else "this"
                place.at(index).refuse(f"{shown} is not a kind of alert", f"use one of {known}")
        return frozenset(kind for kind in kinds if kind in given)

    return read


def _tier(default: Tier) -> Reader:
    """Read a tier of alerts; its own labels are added to the default ones."""

    def read(value: object, place: Place) -> Tier:
        found = read_mapping(TIER, value, place)
        own, notes = found.get("labels") or {}, found.get("annotations") or {}
        return Tier({**default.labels, **own}, notes)

    return read


def read_alerting(value: object, place: Place) -> Alerting | None:
    """Read the alerting of a service."""
    before = len(place.problems)
    read = read_mapping(ALERTING, value, place)
    return Alerting(**read) if len(place.problems) == before else None


def read_overrides(value: object, place: Place) -> Overrides | None:
    """Read how the alerts of an objective differ from those of its service."""
    before = len(place.problems)
    read = read_mapping(OVERRIDES, value, place)
    return Overrides(**read) if len(place.problems) == before else None


def _kinds(kinds: Sequence[str]) -> Shape:
    return list_of({"enum": list(kinds)})


TIER = (
    Field(
        "labels",
        alert_labels(ALERT_RESERVED),
        about="Labels of these alerts, in addition to those of service and objective.",
        shape=_LABELS,
    ),
    Field(
        "annotations",
        text_map,
        about="Annotations of these alerts, added to the generated ones; may contain templates.",
        shape=_ANNOTATIONS,
    ),
)
_MIN_BAD_EVENTS = Field(
    "min_bad_events",
    integer(0, _MAX_BAD_EVENTS),
    about="Least number of bad events in the long window of a burn alert.",
    shape={"type": "integer", "minimum": 0, "maximum": _MAX_BAD_EVENTS},
)
_TIER = mapping_of(TIER)
_PAGE, _TICKET, _CAUSE = (
    "Alerts for a person now.",
    "Alerts for a person within a working day.",
    "Alerts that name causes.",
)
_NONE_OF = "Alerts to leave out."
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
