"""``tokenslo diagnose`` on the history of a real Prometheus, without an SLO file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from lab.prometheus import Prometheus
from promql.expr import vector
from tests.diagnosis_scenarios import recorded_targets
from tests.service_example import example, objective
from tokenslo.cli import main

EVERY = 30
SAMPLES = 45
"""Samples of each day: more than the longest window of a check."""
DAY = 86_400
TTFT_BOUNDS = ("0.5", "0.8", "1.0", "10.0", "+Inf")
Gauges = Mapping[str, float]

HEALTHY: Gauges = {
    'llm_sequences{state="active"}': 8,
    'llm_sequences{state="waiting"}': 0,
    'llm_sequences{state="paused"}': 0,
    "llm_sequences_max": 64,
    "llm_kv_cache_utilization_ratio": 0.4,
    'tokenslo_ready{layer="model"}': 1,
    'tokenslo_ready{layer="decode"}': 1,
    "tokenslo_source_up": 1,
    "burn": 0.001,
    "requests": 60,
    "output": 6000,
    "late": 0,
}
SICK: Mapping[str, Gauges] = {
    "kv_pressure": {
        'llm_sequences{state="waiting"}': 20,
        "llm_kv_cache_utilization_ratio": 0.98,
        "burn": 0.5,
        "late": 0.5,
    },
    "stuck_decode": {
        'tokenslo_ready{layer="decode"}': 0,
        "burn": 0.9,
        "requests": 0,
        "output": 0,
    },
    "healthy": {},
}


def history(now: int) -> Iterator[tuple[str, str, list[tuple[int, float]]]]:
    """Yield name, labels and samples of every series of yesterday and today."""
    for scenario, sick in SICK.items():
        labels = {"model": "llama", "namespace": scenario, "instance": f"{scenario}:9464"}
        values = {**HEALTHY, **sick}
        for name, value in values.items():
            metric, _, state = name.partition("{")
            if not metric.startswith(("llm_", "tokenslo_")):
                continue
            own = {**labels, **dict(_pairs(state))}
            if metric == "tokenslo_source_up":
                own = {**_without_model(labels), "source": "triton"}
            yield metric, _text(own), _constant(now, HEALTHY[name], value)
        yield "tokenslo_build_info", _text(_without_model(labels)), _constant(now, 1, 1)
        info = {**labels, "signal": "ttft", "quality": "exact", "method": "proxy"}
        yield "tokenslo_signal_info", _text(info), _constant(now, 1, 1)
        yield from _counters(now, labels, values)
        service = {"service": _service(scenario), "slo": "ttft"}
        yield "slo:error_ratio:rate5m", _text(service), _constant(now, 0.001, values["burn"])
        plan = example(objective("ttft"), selector={"model": "llama", "namespace": scenario})
        (target,) = recorded_targets(plan)
        recorded = {**target.labels, **service}
        recorded.pop("__name__")
        yield "slo:target:ratio", _text(recorded), _constant(now, target.value, target.value)
        if values["burn"] > 0.1:
            alert = f"{_service(scenario).title()}TtftErrorBudgetBurn"
            firing = {**service, "alertname": alert, "alertstate": "firing"}
            yield "ALERTS", _text(firing), [(time_, 1.0) for time_ in _times(now)]
    plan = example(objective("ttft"), selector={"model": "absent", "namespace": "absent"})
    (target,) = recorded_targets(plan)
    recorded = {**target.labels, "service": "absent"}
    recorded.pop("__name__")
    yield "slo:target:ratio", _text(recorded), _constant(now, 0.99, 0.99)


def _counters(
    now: int, labels: Mapping[str, str], values: Gauges
) -> Iterator[tuple[str, str, list[tuple[int, float]]]]:
    """Yield requests, tokens and times to first token; half of ``late`` ones are too late."""
    for outcome in ("ok", "error", "shed", "timeout"):
        rate = values["requests"] if outcome == "ok" else 0
        own = _text({**labels, "outcome": outcome})
        before = HEALTHY["requests"] if outcome == "ok" else 0
        yield "llm_requests_total", own, _counter(now, before, rate)
    for direction in ("input", "output"):
        own = _text({**labels, "direction": direction})
        rate = values["output"] if direction == "output" else 100 * values["requests"]
        yield "llm_tokens_total", own, _counter(now, 6000, rate)
    for result, share in (("good", 1 - values["late"]), ("bad", values["late"])):
        own = _text({**labels, "signal": "ttft", "threshold": "0.8", "result": result})
        before = HEALTHY["requests"] if result == "good" else 0
        rate = values["requests"] * share
        yield "llm_slo_events_total", own, _counter(now, before, rate)
    for bound in TTFT_BOUNDS:
        late = values["late"] if bound in ("0.5", "0.8", "1.0") else 0
        rate = values["requests"] * (1 - late)
        own = _text({**labels, "le": bound})
        yield "llm_time_to_first_token_seconds_bucket", own, _counter(now, 60, rate)
    count = _counter(now, 60, values["requests"])
    yield "llm_time_to_first_token_seconds_count", _text(labels), count


def _service(scenario: str) -> str:
    return scenario.replace("_", "")


def _pairs(state: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, state.rstrip("}").split(",")):
        name, _, value = pair.partition("=")
        yield name, value.strip('"')


def _without_model(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "model"}


def _text(labels: Mapping[str, str]) -> str:
    return str(vector("x", dict(labels)))[1:]


def _times(now: int) -> range:
    return range(now - (SAMPLES - 1) * EVERY, now + 1, EVERY)


def _constant(now: int, before: float, value: float) -> list[tuple[int, float]]:
    return [
        *((at - DAY, before) for at in _times(now)),
        *((at, value) for at in _times(now)),
    ]


def _counter(now: int, before: float, rate: float) -> list[tuple[int, float]]:
    """Return a counter that grows by ``before`` a sample yesterday and by ``rate`` today."""
    earlier = [(at - DAY, before * n) for n, at in enumerate(_times(now))]
    base = earlier[-1][1]
    return [*earlier, *((at, base + rate * n) for n, at in enumerate(_times(now)))]


def openmetrics(now: int) -> str:
    families: dict[str, list[str]] = {}
    for name, labels, samples in history(now):
        lines = families.setdefault(name, [])
        lines += [f"{name}{labels} {value} {at}" for at, value in samples]
    text = []
    for name, lines in families.items():
        text += [f"# TYPE {name} unknown", *lines]
    return "\n".join([*text, "# EOF", ""])


@pytest.fixture(scope="module")
def now() -> int:
    return int(time.time()) // 60 * 60 - 3_600


@pytest.fixture(scope="module")
def url(prometheus_with: Callable[..., Prometheus], now: int) -> Iterator[str]:
    with prometheus_with(openmetrics(now)) as server:
        yield server.url


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "--json", *arguments])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.err) == (0, "")
    found: dict[str, Any] = json.loads(printed.out)
    return found


@pytest.mark.parametrize(
    ("scenario", "verdict", "first"),
    [
        ("kv_pressure", "likely", "kv_pressure"),
        ("stuck_decode", "likely", "stuck_decode"),
        ("healthy", "no_incident", "healthy"),
    ],
)
def test_scenario_is_diagnosed(
    capsys: pytest.CaptureFixture[str],
    url: str,
    now: int,
    scenario: str,
    verdict: str,
    first: str,
) -> None:
    service = _service(scenario)
    found = diagnosed(capsys, "--prometheus", url, "--at", str(now), "--service", service)
    failed = [each for each in found["checks"] if each["verdict"] == "failed"]
    assert failed == []
    causes = [(each["key"], each["probability"]) for each in found["causes"][:3]]
    assert (found["verdict"], causes[0][0]) == (verdict, first), causes
    alert = f"{service.title()}TtftErrorBudgetBurn"
    assert found["firing"] == ([] if first == "healthy" else [alert])


def test_service_without_series_points_to_the_measurement(
    capsys: pytest.CaptureFixture[str], url: str, now: int
) -> None:
    found = diagnosed(capsys, "--prometheus", url, "--at", str(now), "--service", "absent")
    verdicts = {each["check"]: each["verdict"] for each in found["checks"]}
    verdicts.pop("cause_alerts")
    assert {key for key, each in verdicts.items() if each == "sick"} == {"scraped", "selected"}
    assert {*verdicts.values()} == {"sick", "no_data"}
    assert found["verdict"] == "cannot_tell"
    assert {*found["between"]} == {"source_down", "wrong_selector"}


def test_time_before_any_series_has_no_rules(
    capsys: pytest.CaptureFixture[str], url: str, now: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "--prometheus", url, "--at", str(now - 9 * DAY)])
    assert ended.value.code == 2
    assert "Prometheus has no slo:target:ratio" in capsys.readouterr().err
