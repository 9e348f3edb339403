"""Read an error budget policy."""

from __future__ import annotations

from decimal import Decimal

from slos.durations import parse_share
from slos.errors import BadValue
from slos.fields.values import read_bounded
from slos.model import PolicyStep
from slos.schema import LINE, SHARE, Field, Place, expect, one_line, read_mapping, read_value

MAX_STEPS = 10
_STEP = '{when: 50%, do: "no risky rollouts"}'


def read_policy(value: object, place: Place) -> tuple[PolicyStep, ...]:
    """Read the steps of an error budget policy, by the share of the budget that is spent."""
    items: list[object] = expect(list, f"a list of steps such as {_STEP}", value)
    if not items:
        raise BadValue("has no step", f"add one, such as {_STEP}")
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
    wanted = "the share of the budget that is spent at this step, such as 50%"
    return read_bounded(value, parse_share, "0%", "100%", wanted)


STEP = (
    Field(
        "when",
        _spent,
        required="50%",
        about="The share of the error budget that is spent.",
        shape=SHARE,
    ),
    Field(
        "do",
        one_line,
        required="no risky rollouts",
        about="What the team does from then on; one line.",
        shape=LINE,
    ),
)
