"""The verdict in PromQL is the verdict of :func:`gates.verdict.decide`, shown by promtool."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterable, Mapping
from math import nan
from pathlib import Path

import pytest
import yaml
from gate_example import GATE, NAMES, measurements, shares

from gates import groups
from gates.criteria import Criterion, ShareCriterion, gate_of
from gates.measurement import ArmLabels, measure
from gates.recording_rules import HEALTH, USED, bad_events, rules
from gates.statistics import Count
from gates.verdict import (
    GateVerdict,
    Measurement,
    ShareMeasurement,
    UsageMeasurement,
    decide,
    evaluate,
)
from gates.verdict_query import ABORT, INCONCLUSIVE, PROMOTE, abort_query, verdict_query
from promql.client import Sample
from slos.model import Rollout
from slos.signals import PROMPT_CLASS
from tests.service_example import example, objective

CODES = {
    GateVerdict.PROMOTE: PROMOTE,
    GateVerdict.ABORT: ABORT,
    GateVerdict.INCONCLUSIVE: INCONCLUSIVE,
}
CANARY, BASELINE = "2", "1"
Series = dict[str, str]
TTFT = GATE.criteria[0]


def number(value: float) -> str:
    return "NaN" if value != value else repr(float(value))


def labels(criterion: Criterion, version: str, **more: str) -> str:
    every = {"service": "chat", "slo": criterion.name, "version": version, **more}
    return ",".join(f'{name}="{value}"' for name, value in every.items())


def recorded(criterion: Criterion, measurement: Measurement) -> Iterable[Series]:
    """Yield recorded series that have the values of a measurement."""
    if isinstance(measurement, UsageMeasurement):
        for version, used in ((CANARY, measurement.canary), (BASELINE, measurement.baseline)):
            if used is not None:
                yield constant(f"{USED}{{{labels(criterion, version)}}}", used)
        return
    for version, arm in ((CANARY, measurement.canary), (BASELINE, measurement.baseline)):
        for name, count in arm.items():
            of = labels(criterion, version, **({PROMPT_CLASS: name} if name else {}))
            yield constant(f"{bad_events(GATE)}{{{of}}}", count.bad)
            yield constant(f"slo:rollout_total:increase15m{{{of}}}", count.total)


def constant(series: str, value: float) -> Series:
    return {"series": series, "values": " ".join([number(value)] * 6)}


def health(canary: float | None, baseline: float | None) -> list[Series]:
    arms = {CANARY: canary, BASELINE: baseline}
    return [
        constant(f'{HEALTH}{{service="chat",version="{version}"}}', value)
        for version, value in arms.items()
        if value is not None
    ]


def check(promtool: Path, folder: Path, tests: list[dict[str, object]]) -> None:
    """Run promtool with the generated rules."""
    group = groups(GATE.plan)
    (folder / "rules.yaml").write_text(json.dumps({"groups": group}))
    test_file = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": tests}
    (folder / "test.yaml").write_text(json.dumps(test_file))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:4_000]


def expects(criterion: Criterion, verdict: int, at: str = "2m") -> list[dict[str, object]]:
    verdicts = {
        str(verdict_query(GATE, criterion, CANARY, BASELINE)): verdict,
        str(abort_query(GATE, criterion, CANARY, BASELINE)): int(verdict == ABORT),
    }
    return [
        {"expr": expr, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in verdicts.items()
    ]


CLASSES = ("0-512", "513-4096", "over-4096")
SIZES = (0, 1, 9, 10, 11, 60, 300, 2_000, 20_000, 500_000)
LEVELS = (0.0, 0.001, 0.01, 0.03, 0.05, 0.08, 0.2, 1.0)


def random_count(source: random.Random) -> Count:
    total = source.choice(SIZES) * source.uniform(0.7, 1)
    return Count(min(total, total * source.choice(LEVELS) * source.uniform(0.8, 1.2)), total)


def random_measurement(source: random.Random) -> ShareMeasurement:
    """Return arms with or without classes, some of which one arm may lack."""
    names = ("",) if source.random() < 0.4 else CLASSES
    canary, baseline = (
        {name: random_count(source) for name in names if source.random() < 0.9} for _ in range(2)
    )
    return shares(canary, baseline)


def test_random_arms_have_the_same_verdict_in_promql(promtool: Path, tmp_path: Path) -> None:
    source, tests, found = random.Random(7), [], []
    for _ in range(100):
        measurement = random_measurement(source)
        expected = CODES[evaluate(GATE, TTFT, measurement).verdict]
        found.append(expected)
        series = [*recorded(TTFT, measurement), *health(1, 1)]
        tests.append({"input_series": series, "promql_expr_test": expects(TTFT, expected)})
    assert min(found.count(code) for code in CODES.values()) >= 10  # all three are tested
    check(promtool, tmp_path, tests)


def test_missing_and_broken_values_have_the_same_verdict_in_promql(
    promtool: Path, tmp_path: Path
) -> None:
    good, bad = Count(20, 10_000), Count(900, 10_000)
    kv = GATE.criteria[NAMES.index("guard_kv_headroom")]
    arms = {
        "equal": ({"": good}, {"": good}),
        "worse": ({"": bad}, {"": good}),
        "both break the objective": ({"": bad}, {"": bad}),
        "no series": ({}, {}),
        "no canary": ({}, {"": good}),
        "no baseline": ({"": bad}, {}),
        "NaN": ({"": Count(nan, nan)}, {"": good}),
        "NaN of bad events": ({"": Count(nan, 10_000)}, {"": good}),
        "NaN of the baseline": ({"": bad}, {"": Count(nan, nan)}),
        "no events": ({"": Count(0, 0)}, {"": good}),
        "class missing": ({"a": good}, {"a": good, "b": Count(1, 600)}),
        "class missing in the baseline": ({"a": good, "b": Count(100, 200)}, {"a": good}),
    }
    tests = []
    for name, (canary, baseline) in arms.items():
        for up in ((1, 1), (0, 1), (1, 0), (None, 1), (1, None)):
            measurement = shares(canary, baseline)
            decision = decide(GATE, measurements(ttft=measurement), *up)
            own = decision.evaluations[0].verdict
            verdict = own if up == (1, 1) else GateVerdict.INCONCLUSIVE
            series = [*recorded(TTFT, measurement), *health(*up)]
            expected = expects(TTFT, CODES[verdict])
            tests.append({"name": name, "input_series": series, "promql_expr_test": expected})
    for used in ((0.5, 0.95), (0.95, 0.5), (0.95, 0.95), (0.95, None), (None, 0.5), (nan, 0.5)):
        usage = UsageMeasurement(*used)
        series = [*recorded(kv, usage), *health(1, 1)]
        expected = expects(kv, CODES[evaluate(GATE, kv, usage).verdict])
        tests.append({"name": str(used), "input_series": series, "promql_expr_test": expected})
    check(promtool, tmp_path, tests)


def counters(version: str, pod: str, good: str, bad: str) -> list[Series]:
    of = f'model="llama",version="{version}",signal="ttft",threshold="0.8",instance="{pod}",job="x"'
    return [
        {"series": f'llm_slo_events_total{{{of},result="{result}"}}', "values": values}
        for result, values in (("good", good), ("bad", bad))
    ]


def targets(version: str, pod: str, up: str = "1x60", source: str = "1x60") -> list[Series]:
    on = f'job="x",instance="{pod}"'
    return [
        {"series": f"up{{{on}}}", "values": up},
        {"series": f'tokenslo_source_up{{{on},source="triton"}}', "values": source},
        {
            "series": f'tokenslo_model_info{{{on},model="llama",version="{version}"}}',
            "values": "1x60",
        },
    ]


def test_counters_of_pods_have_the_verdict_of_their_increases(
    promtool: Path, tmp_path: Path
) -> None:
    """Series of one scrape every 30 s for 30 min; the verdict is that of the last 15 min."""
    steady = [*counters("1", "a", "0+100x60", "0+1x60"), *targets("1", "a")]
    cases: Mapping[str, tuple[list[Series], int]] = {
        "equal": ([*counters("2", "b", "0+100x60", "0+1x60"), *targets("2", "b")], PROMOTE),
        "worse": ([*counters("2", "b", "0+90x60", "0+10x60"), *targets("2", "b")], ABORT),
        # A counter that begins at a large value counts from then on.
        "restart": (
            [
                *counters("2", "b", "1000000+100x39 0+100x20", "90000+1x39 0+1x20"),
                *targets("2", "b"),
            ],
            PROMOTE,
        ),
        # The pod starts 10 min before the end.
        "start": (
            [*counters("2", "b", "_x40 0+100x20", "_x40 0+1x20"), *targets("2", "b")],
            PROMOTE,
        ),
        "bad history": (
            [
                *counters("2", "b", "0+0x29 0+100x30", "0+1000x20 20000x8 20000+1x30"),
                *targets("2", "b"),
            ],
            PROMOTE,
        ),
        "no traffic": ([*counters("2", "b", "0x60", "0x60"), *targets("2", "b")], INCONCLUSIVE),
        "no canary": ([], INCONCLUSIVE),
        "one scrape": (
            [*counters("2", "b", "_x59 500", "_x59 5"), *targets("2", "b")],
            INCONCLUSIVE,
        ),
        "down": (
            [
                *counters("2", "b", "0+90x60", "0+10x60"),
                *targets("2", "b", up="1x58 0x2"),
            ],
            INCONCLUSIVE,
        ),
        "source down": (
            [*counters("2", "b", "0+100x60", "0+1x60"), *targets("2", "b", source="1x58 0x2")],
            INCONCLUSIVE,
        ),
        "a former pod": (
            [
                *counters("2", "b", "0+100x60", "0+1x60"),
                *targets("2", "b"),
                *targets("2", "gone", up="1x50", source="1x50 stale"),
            ],
            PROMOTE,
        ),
    }
    cases["a former pod"][0][-3]["values"] = "1x50 stale"
    cases["a former pod"][0][-1]["values"] = "1x50 stale"
    tests = [
        {
            "name": name,
            "interval": "30s",
            "input_series": [*steady, *series],
            "promql_expr_test": expects(TTFT, verdict, "30m"),
        }
        for name, (series, verdict) in cases.items()
    ]
    check(promtool, tmp_path, tests)


def test_queries_of_the_command_measure_each_arm(promtool: Path, tmp_path: Path) -> None:
    """A request every 30 s is bad, and 100 or 200 are good: 30 bad ones in 15 min."""
    rollout = Rollout(guards=("kv_headroom", "gpu_memory"))
    gate = gate_of(example(objective("ttft", "0.95"), selector={"model": "llama"}), rollout)
    queries: list[str] = []

    def evaluate(query: str) -> list[Sample]:
        queries.append(query)
        return []

    measure(gate, ArmLabels({"version": CANARY}, {"version": BASELINE}), "15m", evaluate)
    arms = {CANARY: (200, 0.7), BASELINE: (100, 0.4)}
    series, expected = [], dict[str, float]()
    for version, (good, used) in arms.items():
        pod = f"pod-{version}"
        series += [*counters(version, pod, f"0+{good}x60", "0+1x60"), *targets(version, pod)]
        on = f'job="x",instance="{pod}"'
        model = f'{on},model="llama",version="{version}"'
        series += [
            {"series": f"llm_kv_cache_utilization_ratio{{{model}}}", "values": f"{used}x60"},
            {"series": f"nv_inference_pending_request_count{{{model}}}", "values": "3x60"},
            {"series": f'nv_gpu_memory_used_bytes{{{on},gpu_uuid="a"}}', "values": f"{used}x60"},
            {"series": f'nv_gpu_memory_total_bytes{{{on},gpu_uuid="a"}}', "values": "1x60"},
        ]
        for query in queries:
            if f'version="{version}"' not in query:
                continue
            if "llm_slo_events_total" in query:
                expected[query] = 30 if 'result=~"bad|shed"' in query else 30 * (good + 1)
            else:
                expected[query] = 1 if "tokenslo_source_up" in query else used
    (mix,) = (query for query in queries if query not in expected)
    expected[mix] = 30 * 302
    assert len(expected) == len(queries) == 11
    samples = [
        {"expr": query, "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": value}]}
        for query, value in expected.items()
    ]
    check(
        promtool,
        tmp_path,
        [{"interval": "30s", "input_series": series, "promql_expr_test": samples}],
    )


@pytest.mark.parametrize("label", ["pod", "exported_pod"])
def test_gpu_memory_of_servers_without_triton_comes_from_dcgm(
    label: str, promtool: Path, tmp_path: Path
) -> None:
    gate = gate_of(
        example(objective("ttft", "0.95"), selector={"model": "llama"}),
        Rollout(guards=("gpu_memory",)),
    )
    queries: list[str] = []

    def evaluate(query: str) -> list[Sample]:
        queries.append(query)
        return []

    measure(gate, ArmLabels({"version": CANARY}, {"version": BASELINE}), "15m", evaluate)
    series, samples = [], []
    for version, used in ((CANARY, 75), (BASELINE, 50)):
        of = f'job="x",instance="{version}:1",pod="pod-{version}"'
        other = 'pod="dcgm",' if label == "exported_pod" else ""
        for gpu, more in ((0, 0), (1, -10)):
            labels = f'{other}{label}="pod-{version}",gpu="{gpu}"'
            for metric, value in (("USED", used + more), ("FREE", 100 - used - more)):
                text = {"series": f"DCGM_FI_DEV_FB_{metric}{{{labels}}}", "values": f"{value}x60"}
                series.append(text)
        model = f'{of},model="llama",version="{version}"'
        series.append({"series": f"tokenslo_model_info{{{model}}}", "values": "1x60"})
        (query,) = (each for each in queries if "FB_USED" in each and f'"{version}"' in each)
        value = {"labels": "{}", "value": used / 100}
        samples.append({"expr": query, "eval_time": "30m", "exp_samples": [value]})
    test = {"interval": "30s", "input_series": series, "promql_expr_test": samples}
    check(promtool, tmp_path, [test])


def test_rules_fit_into_a_review() -> None:
    found = list(rules(GATE))
    shared = len([rule for rule in found if "slo" not in rule.get("labels", {})])  # type: ignore[operator]
    of_each = len(found) - shared
    assert shared == 8
    assert of_each == 2 * sum(isinstance(each, ShareCriterion) for each in GATE.criteria) + 2
    assert max(str(rule["expr"]).count("\n") for rule in found) < 30


def test_rules_are_valid_yaml() -> None:
    assert yaml.safe_load(json.dumps(groups(GATE.plan)))
