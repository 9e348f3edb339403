"""Diagnose from one sidecar's series, in compressed time."""

from __future__ import annotations

from diagnosis import Diagnosis, diagnose
from lab.incidents.compression import TimeScale
from lab.incidents.incident import Column
from lab.incidents.stage import Stage
from promql.client import PrometheusError, QueryResult, query
from promql.lexer import InvalidPromQL
from slos.load import load_file
from slos.plan import plan

_SETTLED_SECONDS = 3.0
"""Seconds before the onset at which comparisons with "before" end."""


def diagnose_column(stage: Stage, column: Column, *, since_onset: float) -> Diagnosis:
    """Diagnose from the series of one sidecar.

    Comparisons with an earlier day are comparisons with the healthy phase.  Raises
    promql.client.PrometheusError if Prometheus cannot be queried.
    """
    scale = TimeScale(day_offset=since_onset + _SETTLED_SECONDS)
    (service,) = load_file(stage.slo_files[column]).services

    def compressed(expr: str) -> QueryResult:
        try:
            return query(stage.prometheus.url, scale.expression(expr))
        except (InvalidPromQL, ValueError) as error:
            raise PrometheusError(f"{error}: {expr}") from None

    return diagnose(plan(service), compressed)
