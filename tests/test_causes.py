"""Cause alerts read only metrics that the sidecar and Triton serve, for any selector."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from service_example import example

from promql.parse import parse
from promql.tree import Vector, selectors
from slos.causes import CAUSE_ALERTS, conditions, scope_of
from slos.names import UNAVAILABLE
from slos.outcomes import OUTCOMES
from slos.queries import SERIES
from slos.signals import PHASES, SIGNALS

SELECTORS = (
    {},
    {"model": "llama", "namespace": "prod"},
    {"model": "llama", "version": "1", "tenant": "a", "cluster": "eu"},
)
VALUES: Mapping[str, set[str]] = {
    "outcome": set(OUTCOMES),
    "phase": set(PHASES),
    **{
        label: {signal.fixed[label] for signal in SIGNALS.values() if label in signal.fixed}
        for label in ("state", "direction", "kind")
    },
}
RECORDED = {UNAVAILABLE, *(each.name for alert in CAUSE_ALERTS for each in alert.reads)}
TRITON = {
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_inference_pending_request_count",
}


def read_by_causes(selector: Mapping[str, str]) -> list[Vector]:
    """Return every selector in the conditions of causes and in their recording rules."""
    scope = scope_of(selector, "chat", ("ttft_slo_events", "goodput"))
    exprs = [
        *(each.expr for alert in CAUSE_ALERTS for each in conditions(alert, scope)),
        *(each.expr(scope) for alert in CAUSE_ALERTS for each in alert.reads),
    ]
    return [found for expr in exprs for found in selectors(parse(str(expr)))]


@pytest.mark.parametrize("selector", SELECTORS, ids=str)
def test_every_metric_label_and_value_is_in_the_catalogue(selector: Mapping[str, str]) -> None:
    found = read_by_causes(selector)
    assert {each.metric for each in found} <= TRITON | set(SERIES) | RECORDED
    added = {"namespace", "cluster"}  # by Prometheus
    for each in found:
        for matcher in each.matchers:
            if each.metric not in TRITON | RECORDED:
                assert matcher.label in SERIES[each.metric] | added
            if allowed := VALUES.get(matcher.label):
                assert set(matcher.value.split("|")) <= allowed


def test_causes_ignore_the_selected_tenant() -> None:
    found = read_by_causes({"model": "llama", "tenant": "a"})
    assert found == read_by_causes({"model": "llama"})
    assert not {matcher.label for each in found for matcher in each.matchers} & {"tenant"}


def test_every_cause_has_a_reason_and_the_objectives_it_explains() -> None:
    plan = example()
    assert {planned.cause.name for planned in plan.causes} == {each.name for each in CAUSE_ALERTS}
    for planned in plan.causes:
        assert planned.cause.why.endswith(".")
        indicators = {each.objective.indicator for each in planned.explains}
        assert indicators == set(planned.cause.symptoms)
