"""Read how a rollout is gated."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal

from slos.durations import parse_duration, parse_share
from slos.errors import BadValue, quoted
from slos.fields.values import URL_SHAPE, read_bounded, read_url
from slos.model import GUARDS, Rollout
from slos.schema import (
    DURATION,
    LABEL_NAME,
    SHARE,
    Field,
    Place,
    Reader,
    expect,
    list_of,
    nearest,
    read_mapping,
)

_RESERVED = ("service", "slo", "bound", "prompt_class", "le")
"""Labels that recorded series of a rollout have already."""
_LONGEST = "1d"


def read_rollout(value: object, place: Place) -> Rollout | None:
    """Read the gate of a service's rollouts."""
    before = len(place.problems)
    read = read_mapping(ROLLOUT, value, place)
    return Rollout(**read) if len(place.problems) == before else None


def check_rollout(
    rollout: Rollout, known: tuple[str, ...], selected: Collection[str], place: Place
) -> None:
    """Refuse a label that the service selects, and objectives that a gate cannot compare."""
    if rollout.label in selected:
        message = f"{rollout.label} is in the selector of the service, which then has one arm"
        place.at("label").refuse(message, "delete it from the selector, or use another label")
    for index, name in enumerate(rollout.objectives):
        if name not in known:
            near = nearest(name, known)
            fix = f"write {near}" if near else f"use some of {', '.join(known) or 'none'}"
            message = f"{quoted(name)} is not an objective that counts events by arm"
            place.at("objectives").at(index).refuse(message, fix)


def _label(value: object, _: Place) -> str:
    text: str = expect(str, "a label such as version", value)
    if not LABEL_NAME.fullmatch(text) or text.startswith("__"):
        raise BadValue(f"{quoted(text)} is not the name of a label", "use letters, digits and _")
    if text in _RESERVED:
        raise BadValue(f"{text} is a label of the recorded series", "use another label")
    return text


def _duration(least: str) -> Reader:
    def read(value: object, _: Place) -> Decimal:
        wanted = f"whole seconds from {least} to {_LONGEST}, such as 15m"
        text: str = expect(str, wanted, value)
        seconds = parse_duration(text)
        if seconds % 1 or not parse_duration(least) <= seconds <= parse_duration(_LONGEST):
            raise BadValue(f"{text} is not within {least} and {_LONGEST}", f"write {wanted}")
        return seconds

    return read


def _margin(value: object, _: Place) -> Decimal:
    return read_bounded(
        value, parse_share, "0%", "1000%", "a share of the error budget, such as 25%"
    )


def _objectives(value: object, place: Place) -> tuple[str, ...]:
    given: list[object] = expect(list, "a list of names of objectives", value)
    if not given:
        raise BadValue("has no name", "name an objective, or delete the key for all")
    for index, name in enumerate(given):
        if not isinstance(name, str):
            place.at(index).refuse("is not a name", "write the name of an objective")
    return tuple(str(name) for name in given)


def _guards(value: object, place: Place) -> tuple[str, ...]:
    known = ", ".join(GUARDS)
    given: list[object] = expect(list, f"a list of some of {known}", value)
    for index, name in enumerate(given):
        if name not in GUARDS:
            place.at(index).refuse("is not a guard", f"use some of {known}")
    return tuple(guard for guard in GUARDS if guard in given)


ROLLOUT = (
    Field(
        "label",
        _label,
        about="The label whose values are the arms, such as rollouts_pod_template_hash.",
        shape={"type": "string", "pattern": f"^(?!__){LABEL_NAME.pattern}$"},
    ),
    Field(
        "margin",
        _margin,
        about="How much of the error budget the canary may spend beyond the baseline.",
        shape=SHARE,
    ),
    Field("window", _duration("3m"), about="How long the arms are compared.", shape=DURATION),
    Field(
        "warm_up",
        _duration("0s"),
        about="Time after the start of a canary that does not count.",
        shape=DURATION,
    ),
    Field(
        "objectives",
        _objectives,
        about="The objectives to compare, by name.",
        shape=list_of({"type": "string"}, 1),
    ),
    Field(
        "guards",
        _guards,
        about="What must not become worse besides the objectives.",
        shape=list_of({"enum": [*GUARDS]}),
    ),
    Field(
        "prometheus",
        read_url,
        about="URL of Prometheus for Argo Rollouts and Flagger.",
        shape=URL_SHAPE,
    ),
)
