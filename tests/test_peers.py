"""Peers of the benches: rules of Sloth and Pyrra, and what is measured without a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from bench import evaluation, exposition, generate, paging, peers, rules
from bench.figures import Figure, MissingPeer
from bench.streams import peers as stream_peers
from lab.process import ServerError
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


@pytest.mark.parametrize(
    ("figures", "peer", "reason"),
    [
        (exposition.figures, "prometheus/common/expfmt (Go)", "go is not on PATH"),
        (generate.figures, "sloth generate", "go is not on PATH"),
        (rules.figures, "Sloth", "Go is not installed"),
        (evaluation.figures, "Sloth", "Go is not installed"),
    ],
)
def test_without_go_its_peers_are_missing_with_the_reason(
    figures: Callable[[bool], Iterator[Figure]],
    peer: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TOKENSLO_CACHE", str(tmp_path))
    first = next(figures(False))
    assert isinstance(first, MissingPeer)
    assert first.peer == peer
    assert reason in first.reason


def test_a_gateway_that_does_not_start_is_missing_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, found = ExitStack(), stream_peers.StreamPeer("nginx", 1, None)

    def start(*_: object) -> tuple[ExitStack, stream_peers.StreamPeer]:
        return server, found

    def fail(*_: object) -> stream_peers.Started:
        raise ServerError("envoy was not ready")

    monkeypatch.setattr(stream_peers, "STARTS", {"envoy": fail, "nginx": start})
    with ExitStack() as stack:
        started, missing = stream_peers.start(stack, tmp_path, (1, 2), ["envoy", "nginx"])
    assert (started, missing) == ([found], {"envoy": "envoy was not ready"})
