"""Units of histograms that an SLO file names, by the ends of their names.

Apart from :mod:`slos.generic`, as sidecars without such a histogram need no parser of queries.
"""

from __future__ import annotations

from decimal import Decimal

from promql.literals import decimal_text
from slos.durations import format_duration
from slos.model import Objective

# Units per second, by the suffix of a metric.
_UNITS = {"_seconds": Decimal(1), "_milliseconds": Decimal(1000), "_ms": Decimal(1000)}


def unit_of(metric: str) -> Decimal | None:
    """Return the number of a metric's units per second, None if its name has no unit."""
    return next((unit for end, unit in _UNITS.items() if metric.endswith(end)), None)


def boundary_text(objective: Objective) -> str:
    """Write the threshold of a histogram: a duration if its unit is known."""
    assert objective.threshold is not None  # noqa: S101  (read_generic requires it)
    unit = unit_of(objective.queries["histogram"].partition("{")[0])
    seconds = objective.threshold / unit if unit else None
    return decimal_text(objective.threshold) if seconds is None else format_duration(seconds)
