"""All faults of the matrix, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from lab.faults import (
    churn,
    clock,
    connections,
    disk,
    http2_floods,
    prometheus_restarts,
    resources,
    sources,
    termination,
)
from lab.faults.fault import Fault

_FAMILIES = (
    sources,
    clock,
    disk,
    termination,
    resources,
    prometheus_restarts,
    connections,
    http2_floods,
    churn,
)
CATALOGUE: Mapping[str, Fault] = {
    fault.key: fault for fault in chain.from_iterable(family.FAULTS for family in _FAMILIES)
}
