"""Diagnose from one sidecar's series, in compressed time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.incidents.compression import TimeScale
from lab.incidents.incident import Column
from lab.incidents.stage import Stage
from promql.client import PrometheusError, query
from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from slos.load import load_file
from slos.plan import plan

_SETTLED_SECONDS = 5.0
"""Seconds before the onset to which comparisons with "before" reach, for the shortest windows."""


def diagnose(stage: Stage, column: Column, *, since_onset: float) -> Mapping[str, Any]:
    """Return the results of the checks, by key."""
    scale = TimeScale(day_offset=since_onset + _SETTLED_SECONDS)
    (service,) = load_file(stage.slo_files[column]).services
    planned = plan(service)
    subject = Subject(planned, planned.objectives[0])
    found: dict[str, Any] = {}
    for key, check in CHECKS.items():
        try:
            expr = scale.expression(str(check.query(subject)))
            samples = query(stage.prometheus.url, expr)
        except (PrometheusError, AssertionError) as error:
            found[key] = {"error": str(error)}
            continue
        found[key] = [[dict(sample.labels), sample.value] for sample in samples]
    return found
