"""Cause alerts ask only for what the sidecar and Triton serve, by any selector."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from service_example import example

from promql.parse import parse
from promql.tree import Vector, selectors
from slos.causes import CAUSE_ALERTS, conditions, scope_of
from slos.names import UNAVAILABLE
from slos.queries import SERIES
from slos.signals import OUTCOMES, PHASES, SIGNALS

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


def asked(selector: Mapping[str, str]) -> list[Vector]:
    """Return every selector of every cause's conditions, and of what is recorded for them."""
    scope = scope_of(selector, "chat", ("ttft_slo_events", "goodput"))
    exprs = [
        *(each.expr for alert in CAUSE_ALERTS for each in conditions(alert, scope)),
        *(each.expr(scope) for alert in CAUSE_ALERTS for each in alert.reads),
    ]
    return [found for expr in exprs for found in selectors(parse(str(expr)))]


@pytest.mark.parametrize("selector", SELECTORS, ids=str)
def test_every_metric_label_and_value_is_in_the_catalogue(selector: Mapping[str, str]) -> None:
    found = asked(selector)
    assert {each.metric for each in found} <= TRITON | set(SERIES) | RECORDED
    added = {"namespace", "cluster"}  # by Prometheus
    for each in found:
        for matcher in each.matchers:
            if each.metric not in TRITON | RECORDED:
                assert matcher.label in SERIES[each.metric] | added
            if known := VALUES.get(matcher.label):
                assert set(matcher.value.split("|")) <= known


def test_causes_are_about_servers_whichever_tenant_is_selected() -> None:
    found = asked({"model": "llama", "tenant": "a"})
    assert found == asked({"model": "llama"})
    assert not {matcher.label for each in found for matcher in each.matchers} & {"tenant"}


def test_every_cause_says_why_and_what_it_explains() -> None:
    plan = example()
    assert {planned.cause.name for planned in plan.causes} == {each.name for each in CAUSE_ALERTS}
    for planned in plan.causes:
        assert planned.cause.why.endswith(".")
        told = {each.objective.indicator for each in planned.explains}
        assert told == set(planned.cause.symptoms)
