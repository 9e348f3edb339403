"""Read the time slices of an objective."""

from __future__ import annotations

from decimal import Decimal

from slos.durations import parse_duration
from slos.errors import BadValue
from slos.fields.values import read_share_below_one, with_unit
from slos.model import TimeSlices
from slos.names import BASE_WINDOW
from slos.schema import SHARE, Field, Place, read_mapping

SLICES = ("1m", "5m")
"""How long time slices may be: whole parts of the base window."""


def read_time_slices(value: object, place: Place) -> TimeSlices | None:
    """Read length and target of time slices."""
    read = read_mapping(TIME_SLICES, value, place)
    if read.get("window") is None or read.get("target") is None:
        return None
    return TimeSlices(read["window"], read["target"])


def _slice(value: object, _: Place) -> Decimal:
    wanted = " or ".join(SLICES)
    text = with_unit(value, wanted)
    window = parse_duration(text)
    if text not in SLICES:
        message = f"slices of {text} do not fill the {BASE_WINDOW} over which events are recorded"
        raise BadValue(message, f"write {wanted}")
    return window


def _slice_target(value: object, _: Place) -> Decimal:
    """Read a target below 100%, which rounding of rates could miss."""
    return read_share_below_one(
        value, "a percentage below 100%, such as 95%", "100% is what no rate can show"
    )


TIME_SLICES = (
    Field(
        "window",
        _slice,
        required="1m",
        about="The length of a slice.",
        shape={"enum": list(SLICES)},
    ),
    Field(
        "target",
        _slice_target,
        required="95%",
        about="The share of events that must be good in a good slice.",
        shape=SHARE,
    ),
)
