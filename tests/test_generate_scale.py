"""Costs and sizes of outputs grow linearly with the number of objectives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from service_example import objective, service

import alerts
import dashboards
import runbooks
from alerts.traffic import apart
from slos.indicators import INDICATORS
from slos.model import Objective
from slos.plan import Plan, plan
from tokenslo.cli import main

Made = Mapping[str, str]
OUTPUTS: Mapping[str, Callable[..., Made]] = {
    "rules": alerts.files,
    "dashboards": dashboards.files,
    "runbooks": runbooks.files,
}


def many(count: int) -> Plan:
    kinds = [each for each in INDICATORS.values() if each.key != "goodput"]
    objectives = [
        replace(objective(kinds[index % len(kinds)].key), name=f"objective-{index}")
        for index in range(count)
    ]
    return plan(service(*objectives))


def generic(count: int) -> Plan:
    return plan(
        service(
            *(
                Objective(
                    f"objective-{index}",
                    "bad_events",
                    Decimal("0.99"),
                    queries={"bad": f"bad{index}_total", "total": f"all{index}_total"},
                )
                for index in range(count)
            )
        )
    )


def cost(make: Callable[[], Made]) -> tuple[int, int]:
    """Return the number of function calls, and of bytes written."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        made = make()
    finally:
        sys.setprofile(before)
    return calls, sum(len(text.encode()) for text in made.values())


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("made", [many, generic])
def test_twice_the_objectives_have_twice_the_cost_and_size(
    made: Callable[[int], Plan], output: str
) -> None:
    few, most = made(26), made(52)
    for each in (few, most):
        OUTPUTS[output](each, source="slo.yaml", version="0.1.0")  # to fill caches
    one = cost(lambda: OUTPUTS[output](few, source="slo.yaml", version="0.1.0"))
    two = cost(lambda: OUTPUTS[output](most, source="slo.yaml", version="0.1.0"))
    assert two[0] < 2.1 * one[0]
    assert two[1] < 2.1 * one[1]


def test_grouping_test_cases_of_twice_the_objectives_has_twice_the_cost() -> None:
    few, most = generic(150), generic(300)
    for each in (few, most):
        apart(each)  # parsed queries are cached
    one, two = (cost(lambda each=each: {str(len(apart(each))): ""}) for each in (few, most))  # type: ignore[misc]
    assert two[0] < 2.1 * one[0]


LLM_KINDS = (
    "indicator: ttft, threshold: 800ms, target: 95%",
    "indicator: itl, threshold: 60ms, target: 99%",
    "indicator: availability, target: 99.9%",
    "indicator: stream_completion, target: 99%",
    "indicator: goodput, clauses: {ttft: 800ms, tpot: 60ms}, target: 95%",
    "indicator: kv_headroom, threshold: 90%, target: 99%",
)
PLAIN = (
    'indicator: {{bad: \'sum(rate(http_requests_total{{job="j{0}",code=~"5.."}}[{{window}}]))\', '
    "total: 'sum(rate(http_requests_total{{job=\"j{0}\"}}[{{window}}]))'}}, target: 99.9%"
)


@pytest.mark.parametrize("kind", ["plain", "llm"])
def test_a_thousand_objectives_are_at_most_20_mb(kind: str, tmp_path: Path) -> None:
    """Extrapolate from the files of 60 and of 180 objectives."""

    def weight(count: int) -> int:
        rows = (
            f"  - {{name: o{n}, {PLAIN.format(n) if kind == 'plain' else LLM_KINDS[n % 6]}}}\n"
            for n in range(100, 100 + count)
        )
        file, out = tmp_path / f"{count}.yaml", tmp_path / str(count)
        file.write_text(
            "apiVersion: tokenslo/v1\nservice: shop\nobjectives:\n" + "".join(rows),
            encoding="utf-8",
        )
        with pytest.raises(SystemExit) as stopped:
            main(["generate", str(file), "-o", str(out)])
        assert stopped.value.code == 0
        return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())

    few, most = weight(60), weight(180)
    each = (most - few) / 120
    assert few - 60 * each + 1000 * each <= 20_000_000
