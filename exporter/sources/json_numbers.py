"""Read numbers from untrusted JSON."""

from __future__ import annotations

from math import isfinite


def amount(value: object) -> float | None:
    """Return a finite, non-negative number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) and number >= 0 else None
