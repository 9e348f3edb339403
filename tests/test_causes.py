"""Cause alerts ask only for what the sidecar and Triton serve, by any selector."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from service_example import example

from promql.parse import parse
from promql.tree import Vector, selectors
from slos.causes import CAUSE_ALERTS, conditions
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
TRITON = {
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_inference_pending_request_count",
}


def asked(selector: Mapping[str, str]) -> list[Vector]:
    """Return every selector of every cause's conditions."""
    return [
        found
        for alert in CAUSE_ALERTS
        for condition in conditions(alert, selector)
        for found in selectors(parse(str(condition.expr)))
    ]


@pytest.mark.parametrize("selector", SELECTORS, ids=str)
def test_every_metric_label_and_value_is_in_the_catalogue(selector: Mapping[str, str]) -> None:
    found = asked(selector)
    assert {each.metric for each in found} <= TRITON | set(SERIES)
    added = {"namespace", "cluster"}  # by Prometheus
    for each in found:
        for matcher in each.matchers:
            if each.metric not in TRITON:
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
