"""Read which refused requests spend an error budget."""

from __future__ import annotations

from slos.errors import BadValue
from slos.outcomes import MEANINGS, REFUSALS, SPENDING
from slos.schema import Field, Place, boolean, expect, read_mapping

_EXAMPLE = "{shed: false}"


def read_error_budget(value: object, place: Place) -> dict[str, bool]:
    """Read whether refused requests spend the error budget, by outcome."""
    if not expect(dict, f"a mapping such as {_EXAMPLE}", value):
        raise BadValue("has no outcome", f"write at least one, such as {_EXAMPLE}")
    return read_mapping(ERROR_BUDGET, value, place)


ERROR_BUDGET = tuple(
    Field(
        outcome,
        boolean,
        about=f"Whether requests with this outcome are bad events. {MEANINGS[outcome].meaning}",
        shape={"type": "boolean", "default": outcome in SPENDING},
    )
    for outcome in REFUSALS
)
