"""The keys of an SLO file that choose burn-rate windows and the tiers of cause alerts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from slos.causes import CAUSE_ALERTS
from slos.durations import parse_duration
from slos.errors import BadValue
from slos.model import CAUSE_TIERS, RULES, BurnWindow
from slos.schema import (
    DURATION,
    Field,
    Place,
    Shape,
    expect,
    list_of,
    mapping_of,
    nearest,
    read_mapping,
    read_value,
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
        about="How many times faster than allowed the budget burns.",
        shape={"type": "number", "minimum": 1, "maximum": 1_000_000},
    ),
)
WINDOWS = Field(
    "windows",
    _windows,
    about="Pairs of burn-rate windows, instead of those that follow from period and target.",
    shape=list_of(mapping_of(PAIR), 1, _MOST),
)
_TIER: Shape = {"enum": [*CAUSE_TIERS]}
CAUSES = Field(
    "causes",
    _causes,
    about="Tiers of single cause alerts; off leaves one out.",
    shape={
        "type": "object",
        "propertyNames": {"enum": [*_CAUSES]},
        "additionalProperties": _TIER,
    },
)
RECORDING = Field(
    "rules",
    _choice(RULES),
    about="How increases are recorded: exact (last values less earlier ones) or plain (rate).",
    shape={"enum": [*RULES], "default": RULES[0]},
)
