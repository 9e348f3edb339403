"""The demand for replicas on series: idle, loaded, empty, NaN, missing sidecars, no replicas."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from service_example import example, objective

from autoscaling.policy import ScalingPolicy, policy_of
from slos.model import Autoscaling

SETTINGS = Autoscaling(
    "Deployment/chat",
    8,
    "http://prometheus:9090",
    min_replicas=0,
    tokens_in_flight=50_000,
    wake="gateway_queue",
)
LABELS = 'model="llama",namespace="prod"'


def policy(settings: Autoscaling = SETTINGS, **of_service: object) -> ScalingPolicy:
    plan = example(objective("goodput", "0.95"), autoscaling=settings, **of_service)
    return policy_of(plan, settings)


ALWAYS_RUNNING = Autoscaling(
    "Deployment/chat", 8, "http://prometheus:9090", tokens_in_flight=50_000
)


def sidecar(
    name: str,
    waiting: str = "0x40",
    kv: str = "0x40",
    used: str = "0x40",
    good: str = "0+60x40",
    bad: str = "0x40",
    failed: str = "0x40",
    shed: str = "0x40",
    quota: str = "0x40",
    up: str = "1x40",
) -> dict[str, str]:
    """Return the series of one sidecar, a sample every 15 seconds."""
    of = f'{LABELS},job="llm",instance="{name}"'
    goodput = f'llm_goodput_requests_total{{{of},objective="chat/goodput"'
    return {
        f'up{{namespace="prod",job="llm",instance="{name}"}}': up,
        f"tokenslo_model_info{{{of}}}": "1x40" if up == "1x40" else "1x8 stale",
        f'llm_sequences{{{of},state="waiting"}}': waiting,
        f"llm_kv_cache_utilization_ratio{{{of}}}": kv,
        f'llm_kv_cache_blocks{{{of},state="used"}}': used,
        f"llm_kv_cache_block_tokens{{{of}}}": used if "stale" in used else "32x40",
        f'{goodput},result="good"}}': good,
        f'{goodput},result="bad",clause="ttft"}}': bad,
        f'{goodput},result="bad",clause="outcome"}}': failed,
        f'{goodput},result="shed",clause="outcome"}}': shed,
        f'{goodput},result="quota",clause="outcome"}}': quota,
    }


def gone(name: str) -> dict[str, str]:
    """Return the series of a sidecar whose scrapes fail from the third minute on."""
    dead = "9x8 stale"
    return sidecar(name, dead, dead, dead, dead, dead, dead, dead, dead, up="1x8 0x32")


def deleted(name: str) -> dict[str, str]:
    """Return the series of a sidecar whose target was deleted."""
    up = f'up{{namespace="prod",job="llm",instance="{name}"}}'
    return {**gone(name), up: "1x8 stale"}


SPEC = 'kube_deployment_spec_replicas{namespace="prod",deployment="chat"}'
QUEUE = "gateway_queue"
NAN = " ".join(["NaN"] * 40)
LOAD = {"waiting": "4x40", "kv": "0.6x40", "used": "2000x40"}
CASES: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "idle": (
        sidecar("a") | sidecar("b"),
        {"waiting": 0, "kv-cache": 0, "tokens-in-flight": 0, "goodput": 0},
    ),
    "loaded": (  # 2 + 8 / 8, 1.2 / 0.8 * 1.1, 128,000 / 50,000 * 1.1
        sidecar("a", **LOAD) | sidecar("b", **LOAD),
        {"waiting": 3, "kv-cache": "1.65", "tokens-in-flight": "2.816", "goodput": 0},
    ),
    "one of two sidecars is not scraped: it counts as the other": (
        sidecar("a", **LOAD) | gone("b"),
        {"waiting": 3, "kv-cache": "1.65", "tokens-in-flight": "2.816", "goodput": 0},
    ),
    "a deleted pod does not count": (
        sidecar("a", **LOAD) | deleted("b"),
        {"waiting": "1.5", "kv-cache": "0.825", "tokens-in-flight": "1.408", "goodput": 0},
    ),
    "no sidecar is scraped": (
        gone("a") | gone("b"),
        {"waiting": None, "kv-cache": None, "tokens-in-flight": None, "goodput": None},
    ),
    "no series": ({}, dict.fromkeys(("waiting", "kv-cache", "tokens-in-flight", "goodput"))),
    "no replicas": (
        {SPEC: "0x40"},
        {"waiting": 0, "kv-cache": 0, "tokens-in-flight": 0, "goodput": 0},
    ),
    "replicas without measurements are not idle": (
        {SPEC: "2x40"},
        {"waiting": None, "kv-cache": None, "tokens-in-flight": None, "goodput": None},
    ),
    "NaN is no measurement": (
        sidecar("a", kv=NAN, waiting=NAN, used=NAN, good=NAN),
        {"waiting": None, "kv-cache": None, "tokens-in-flight": None, "goodput": None},
    ),
    "a sidecar with NaN counts as the other": (
        sidecar("a", **LOAD) | sidecar("b", kv=NAN, waiting=NAN, used=NAN),
        {"waiting": 3, "kv-cache": "1.65", "tokens-in-flight": "2.816"},
    ),
    "goodput burns 1.5 times its budget": (  # 3 of 40 late, 18 in 2 minutes
        sidecar("a", good="0+27.75x40", bad="0+2.25x40") | sidecar("b", good="0x40"),
        {"goodput": 3},
    ),
    "burn is bounded": (
        sidecar("a", good="0x40", bad="0+30x40"),
        {"goodput": 2},
    ),
    "few late requests do not count": (
        sidecar("a", good="0x40", bad="0x36 1x4"),
        {"goodput": 0},
    ),
    "failed requests do not count": (
        sidecar("a", failed="0+60x40"),
        {"goodput": 0},
    ),
    "shed requests count": (  # 4.5 of 60
        sidecar("a", good="0+55.5x40", shed="0+4.5x40"),
        {"goodput": "1.5"},
    ),
    "late and shed requests add up": (
        sidecar("a", good="0+55.5x40", bad="0+1.5x40", shed="0+3x40"),
        {"goodput": "1.5"},
    ),
    "requests over a quota do not count": (
        sidecar("a", quota="0+60x40"),
        {"goodput": 0},
    ),
    "a counter reset is no burn, and no gap": (
        sidecar("a", good="0+60x33 0+60x6", bad="0x40"),
        {"goodput": 0},
    ),
    "requests wait": ({QUEUE: "3x40"}, {"wake": 1}),
    "no requests wait": ({QUEUE: "0x40"}, {"wake": 0}),
    "several queues": ({f'{QUEUE}{{pool="{pool}"}}': "1x40" for pool in "ab"}, {"wake": 1}),
    "no queue is measured": ({}, {"wake": None}),
}


def check(promtool: Path, folder: Path, tests: list[dict[str, object]]) -> None:
    (folder / "rules.yaml").write_text(json.dumps({"groups": []}))
    test_file = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": tests}
    (folder / "test.yaml").write_text(json.dumps(test_file))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:6_000]


def samples(value: object) -> list[dict[str, object]]:
    """Return the only element: without labels, rounded."""
    return [] if value is None else [{"labels": "{}", "value": value}]


def expected(name: str, policy_: ScalingPolicy, demands: dict[str, object]) -> dict[str, object]:
    queries = {signal.name: signal.demand for signal in policy_.signals}
    return {
        "name": name,
        "interval": "15s",
        "input_series": [],
        "promql_expr_test": [
            {
                "expr": f"round({queries[signal]}, 0.001)",
                "eval_time": "9m",
                "exp_samples": samples(None if value is None else float(str(value))),
            }
            for signal, value in demands.items()
        ],
    }


def test_the_demand_is_one_element_or_none(promtool: Path, tmp_path: Path) -> None:
    tests = []
    for name, (series, demands) in CASES.items():
        test = expected(name, policy(), demands)
        test["input_series"] = [{"series": one, "values": values} for one, values in series.items()]
        tests.append(test)
    check(promtool, tmp_path, tests)


def test_shed_requests_count_only_if_they_spend_the_error_budget(
    promtool: Path, tmp_path: Path
) -> None:
    test = expected("shed", policy(error_budget={"shed": False, "quota": True}), {"goodput": 0})
    series = sidecar("a", shed="0+60x40", quota="0+60x40")
    test["input_series"] = [{"series": one, "values": values} for one, values in series.items()]
    check(promtool, tmp_path, [test])


def test_without_scale_to_zero_no_series_is_never_idle(promtool: Path, tmp_path: Path) -> None:
    signals = ("waiting", "kv-cache", "tokens-in-flight", "goodput")
    test = expected("no replicas", policy(ALWAYS_RUNNING), dict.fromkeys(signals))
    test["input_series"] = [{"series": SPEC, "values": "0x40"}]
    check(promtool, tmp_path, [test])
