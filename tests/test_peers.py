"""The rules of Sloth and Pyrra in the bench, with and without Go."""

from __future__ import annotations

from decimal import Decimal

import pytest
import yaml

from bench import evaluation, paging, peers, rules
from tests.rule_values.paging import BurnRateCondition

SLOTH = {
    "alert": "Burn",
    "labels": {"sloth_severity": "page"},
    "expr": """\
(
    max(slo:sli_error:ratio_rate5m{sloth_id="a"} > (14.4 * 0.01)) without (sloth_window)
    and
    max(slo:sli_error:ratio_rate1h{sloth_id="a"} > (14.4 * 0.01)) without (sloth_window)
)
or
(
    max(slo:sli_error:ratio_rate30m{sloth_id="a"} > (6 * 0.01)) without (sloth_window)
    and
    max(slo:sli_error:ratio_rate6h{sloth_id="a"} > (6 * 0.01)) without (sloth_window)
)
""",
}
PYRRA = {
    "alert": "ErrorBudgetBurn",
    "for": "2m",
    "labels": {"severity": "critical"},
    "expr": 'x:burnrate5m{slo="a"} > (14 * (1-0.99)) and x:burnrate1h{slo="a"} > (14 * (1-0.99))',
}
ABSENT = {"alert": "SLOMetricAbsent", "expr": "absent(x) == 1"}


def test_conditions_are_parsed_with_windows_thresholds_and_for() -> None:
    found = [*peers.conditions([{"rules": [SLOTH, {"record": "x", "expr": "y"}, ABSENT, PYRRA]}])]
    hour, five, share = Decimal(3600), Decimal(300), Decimal("0.144")
    assert found == [
        BurnRateCondition(True, hour, five, share),
        BurnRateCondition(True, 6 * hour, 6 * five, Decimal("0.06")),
        BurnRateCondition(True, hour, five, Decimal("0.14"), wait=Decimal(120)),
    ]
    assert found[0].seconds_to_fire(Decimal(1)) == Decimal("518.4")
    assert found[2].seconds_to_fire(Decimal("0.5")) == Decimal(1128)
    assert found[0].seconds_to_fire(share) is None


def test_without_go_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    peers.main()
    assert capsys.readouterr().out.startswith("Go is not installed")
    rules.main("peers", "generated")
    output = capsys.readouterr().out
    assert output.startswith("Go is not installed")
    assert "Omitted: the tables peers and generated" in output


def test_without_go_our_rules_alone_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (tool,) = files = evaluation.generated(4)
    assert tool == "tokenslo"
    groups = yaml.safe_load(files[tool])["groups"]
    assert [group["name"] for group in groups] == [
        "m0/signals",
        "m0/availability",
        "m0/e2e",
        "m1/signals",
        "m1/availability",
        "m1/e2e",
    ]
    assert [*paging.rules((Decimal("0.9"),))] == ["tokenslo"]
