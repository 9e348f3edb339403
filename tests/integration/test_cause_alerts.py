"""Cause alerts on the real promtool, and their routes and inhibition on the real Alertmanager."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from service_example import example, service

import alerts
from lab.alertmanager import Alertmanager
from slos.causes import CAUSE_ALERTS
from slos.model import PolicyStep
from slos.plan import plan
from tests import libyaml
from tests.polling import read_until

SELECTED = 'model="llama",namespace="prod"'
MINUTES = 60
Series = Mapping[str, str]


def series(metric: str, **labels: str) -> str:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{SELECTED}{more}}}"


def stays(value: float) -> str:
    return f"{value:g}+0x{MINUTES}"


def rises(by: float) -> str:
    return f"0+{by:g}x{MINUTES}"


def engine(
    kv: float = 0.9, active: float = 10, waiting: float = 3, most: float = 64, decoding: float = 7
) -> Series:
    return {
        series("llm_sequences", state="decoding"): stays(decoding),
        series("llm_kv_cache_utilization_ratio"): stays(kv),
        series("llm_sequences", state="active"): stays(active),
        series("llm_sequences", state="waiting"): stays(waiting),
        series("llm_sequences_max"): stays(most),
    }


def queue(waiting: str, most: float | None = 64) -> Series:
    known = {} if most is None else {series("llm_sequences_max"): stays(most)}
    return {series("llm_sequences", state="waiting"): waiting, **known}


def ages(**left: float) -> Series:
    """Count client disconnects each minute by age of the stream: ``s60=2`` is two at 60 s."""
    edges = (5, 5.25, 20, 30, 60, 62, 90, 120, 300)
    at = {float(name.removeprefix("s")): count for name, count in left.items()}
    metric = "llm_disconnect_age_seconds"
    return {
        series(f"{metric}_count"): rises(sum(at.values())),
        series(f"{metric}_bucket", le="+Inf"): rises(sum(at.values())),
        **{
            series(f"{metric}_bucket", le=f"{edge:.1f}" if edge != 5.25 else "5.25"): rises(
                sum(count for age, count in at.items() if age + 0.5 <= edge)
            )
            for edge in edges
        },
    }


def requests(tenant: str = "", /, **by: float) -> Series:
    """Count requests each minute by version and outcome: ``v1_ok=600``."""
    of = {"tenant": tenant} if tenant else {}
    return {
        series("llm_requests_total", version=name[1], outcome=name[3:], **of): rises(count)
        for name, count in by.items()
    }


def times(metric: str, **by: tuple[float, float]) -> Series:
    """Observe a count each minute by version, with a mean: ``v1=(600, 0.5)``."""
    return {
        series(f"{metric}_{of}", version=name[1]): rises(value)
        for name, (count, mean) in by.items()
        for of, value in (("count", count), ("sum", count * mean))
    }


def readers(waited: float, live: float) -> Series:
    return {
        series("llm_client_backpressure_seconds_total"): rises(waited),
        series("llm_live_streams"): stays(live),
    }


def waste(wasted: float, output: float, left: float, tenant: str = "") -> Series:
    of = {"tenant": tenant} if tenant else {}
    return {
        **({} if of else {series("llm_wasted_tokens_total"): rises(wasted)}),
        series("llm_tokens_total", direction="output", **of): rises(output),
        series("llm_streaming_disconnects_total", phase="mid_stream", **of): rises(left),
    }


def gpu(used: float, instance: str = "a", model: str = "llama") -> Series:
    where = f'namespace="prod",instance="{instance}"'
    return {
        f'nv_gpu_memory_used_bytes{{{where},gpu_uuid="0"}}': stays(used),
        f'nv_gpu_memory_total_bytes{{{where},gpu_uuid="0"}}': stays(100),
        f'nv_inference_pending_request_count{{{where},model="{model}",version="1"}}': stays(0),
    }


UP = 'tokenslo_source_up{namespace="prod",instance="a",source="triton"}'


def source(up: float, model: str = "llama") -> Series:
    return {UP: stays(up), **model_info(model)}


def model_info(model: str = "llama") -> Series:
    where = f'namespace="prod",instance="a",model="{model}",version="1"'
    return {f"tokenslo_model_info{{{where}}}": stays(1)}


def declared(signal: str) -> Series:
    return {
        series("tokenslo_signal_info", instance="a", signal=signal, quality="unavailable"): "1x60"
    }


def ready(value: float, layer: str, model: str = "llama") -> Series:
    of = f'namespace="prod",model="{model}",version="1"'
    return {f'tokenslo_ready{{{of},layer="{layer}"}}': stays(value)}


PAUSED = series("llm_sequences", state="paused")
PREEMPTED = series("llm_preemptions_total")
RETRIES = series("llm_suspected_retries_total")
LOST = 'tokenslo_source_lost_records_total{namespace="prod",instance="a",source="iterations"}'

HAPPENS: Mapping[str, tuple[str, Series]] = {
    "the cache is nearly full and sequences wait": ("KvCachePressure", engine()),
    "the maximum is not known": (
        "KvCachePressure",
        {k: v for k, v in engine().items() if "max" not in k},
    ),
    "sequences are paused": ("SequencesPaused", {PAUSED: stays(2)}),
    "an iteration in which sequences are paused is seen now and then": (
        "SequencesPaused",
        {PAUSED: "0 0 0 1 " * 15},
    ),
    "the cache is nearly full, and sequences wait most of the time": (
        "KvCachePressure",
        {**engine(), series("llm_sequences", state="waiting"): "3 2 0 " * 20},
    ),
    "only preemptions are counted": ("SequencesPaused", {PREEMPTED: rises(2)}),
    "the queue is long and grows": ("QueueGrowing", queue("20+2x60")),
    "no token is generated": ("DecodeStuck", ready(0, "decode")),
    "clients disconnect at a minute": ("ClientDisconnectsAtTimeout", ages(s60=2, s20=1)),
    "every fifth request is a retry": ("RetryStorm", {RETRIES: rises(10), **requests(v1_ok=50)}),
    "streams wait a fifth of their time": ("SlowClients", readers(120, 10)),
    "a fifth of all tokens is wasted": ("WastedWork", waste(20, 80, 2)),
    "records are lost": ("EngineStatsLost", {LOST: rises(1), **model_info()}),
    "a source is down": ("ExporterSourceDown", source(0)),
    "a server is down, and its models with it": (
        "ExporterSourceDown",
        {UP: "1 1 0x60", **dict.fromkeys(model_info(), "1 1 stale")},
    ),
    "a server has no tap": ("SignalUnavailable", declared("goodput")),
    "a model is not loaded": ("ModelNotReady", ready(0, "model")),
    "a GPU is full": ("GpuMemoryNearFull", gpu(99)),
    "the new version fails": ("BadVersion", requests(v1_ok=600, v2_ok=500, v2_error=100)),
    "the new version fails, and the old one a little": (
        "BadVersion",
        requests(v1_ok=590, v1_error=10, v2_ok=500, v2_timeout=100),
    ),
    "the new version takes long to begin": (
        "SlowVersion",
        times("llm_time_to_first_token_seconds", v1=(100, 0.4), v2=(100, 1)),
    ),
    "the new version is slow between tokens": (
        "SlowVersion",
        times("llm_inter_token_latency_seconds", v1=(9000, 0.02), v2=(9000, 0.05)),
    ),
}

HEALTHY: Series = {
    **engine(kv=0.7, waiting=0, decoding=9),
    PAUSED: stays(0),
    PREEMPTED: stays(3),
    **requests(v1_ok=600, v1_error=1, v2_ok=600, v2_error=2),
    RETRIES: rises(3),
    **ages(s5=1, s20=1, s60=1, s90=1),
    **readers(6, 20),
    **waste(20, 9000, 4),
    LOST: stays(0),
    **source(1),
    **ready(1, "decode"),
    **ready(1, "model"),
    **gpu(92),
    **times("llm_time_to_first_token_seconds", v1=(600, 0.4), v2=(600, 0.5)),
    **times("llm_inter_token_latency_seconds", v1=(9000, 0.02), v2=(9000, 0.03)),
}

ALIKE: Mapping[str, tuple[str, Series]] = {
    "a full cache and no sequence waits": ("KvCachePressure", engine(waiting=0)),
    "sequences wait with an empty cache": ("KvCachePressure", engine(kv=0.3)),
    "sequences wait for the batch": ("KvCachePressure", engine(active=67)),
    "the batch is full, and more wait before the engine": (
        "KvCachePressure",
        engine(active=64, decoding=60, waiting=30),
    ),
    "one waits for a moment": (
        "KvCachePressure",
        {**engine(), series("llm_sequences", state="waiting"): "0 0 0 0 1 " * 12},
    ),
    "the other policy pauses": ("KvCachePressure", {**engine(), PAUSED: stays(2)}),
    "another server waits": (
        "KvCachePressure",
        {f'{k[:-1]},instance="{"a" if "kv" in k else "b"}"}}': v for k, v in engine().items()},
    ),
    "one preemption": ("SequencesPaused", {PREEMPTED: "0+0x20 1+0x40", PAUSED: stays(0)}),
    "a moment's pause": ("SequencesPaused", {PAUSED: "0+0x20 2+0x2 0+0x38"}),
    "a long queue that shrinks": ("QueueGrowing", queue("180-2x60")),
    "a long queue that stays": ("QueueGrowing", queue(stays(60))),
    "a short queue that grows": ("QueueGrowing", queue("0+0.2x60")),
    "a queue of an unknown server": ("QueueGrowing", queue("20+2x60", None)),
    "an engine decodes": ("DecodeStuck", ready(1, "decode")),
    "another model is stuck": ("DecodeStuck", ready(0, "decode", "qwen")),
    "clients disconnect at different ages": (
        "ClientDisconnectsAtTimeout",
        ages(s10=1, s25=1, s60=2, s70=1, s100=1),
    ),
    "three clients disconnect at a minute": ("ClientDisconnectsAtTimeout", ages(s60=0.1)),
    "retries are few among many": ("RetryStorm", {RETRIES: rises(2), **requests(v1_ok=50)}),
    "one retry of two requests": ("RetryStorm", {RETRIES: rises(0.5), **requests(v1_ok=1)}),
    "one slow client": ("SlowClients", readers(60, 1)),
    "streams wait a little": ("SlowClients", readers(12, 10)),
    "tokens in flight when clients disconnect": ("WastedWork", waste(2, 98, 2)),
    "one long wasted response": ("WastedWork", waste(90, 10, 0.1)),
    "records were lost once": ("EngineStatsLost", {LOST: stays(5), **model_info()}),
    "another model's records are lost": (
        "EngineStatsLost",
        {LOST: rises(1), **model_info("qwen")},
    ),
    "a source of another model is down": ("ExporterSourceDown", source(0, "qwen")),
    "all is read": ("ExporterSourceDown", source(1)),
    "a signal that no objective needs": ("SignalUnavailable", declared("reused_blocks")),
    "a source is down, so nothing is known": (
        "SignalUnavailable",
        {**declared("goodput"), UP: stays(0)},
    ),
    "another model is not loaded": ("ModelNotReady", ready(0, "model", "qwen")),
    "another layer does not hold": ("ModelNotReady", ready(0, "decode")),
    "a GPU as full as engines make it": ("GpuMemoryNearFull", gpu(96)),
    "the GPU of another model is full": ("GpuMemoryNearFull", gpu(99, model="qwen")),
    "the GPU of another server is full": (
        "GpuMemoryNearFull",
        {
            k.replace("memory", "memory", 1).replace('instance="a"', 'instance="b"')
            if "gpu" in k
            else k: v
            for k, v in gpu(99).items()
        },
    ),
    "both versions fail alike": (
        "BadVersion",
        requests(v1_ok=500, v1_error=100, v2_ok=500, v2_error=100),
    ),
    "there is one version": ("BadVersion", requests(v1_ok=500, v1_error=100)),
    "the old version is idle": (
        "BadVersion",
        requests(v1_ok=0, v1_error=0, v2_ok=500, v2_error=100),
    ),
    "both versions are slow": (
        "SlowVersion",
        times("llm_time_to_first_token_seconds", v1=(100, 4), v2=(100, 5)),
    ),
    "one long prompt of the new version": (
        "SlowVersion",
        times("llm_time_to_first_token_seconds", v1=(100, 0.4), v2=(5, 4)),
    ),
    "the old version hardly gets requests, and short ones": (
        "SlowVersion",
        times("llm_time_to_first_token_seconds", v1=(2, 0.1), v2=(100, 1)),
    ),
    "the new version fails once in a while": (
        "BadVersion",
        requests(v1_ok=600, v2_ok=597, v2_error=3),
    ),
    "the new version fails one of three requests": (
        "BadVersion",
        requests(v1_ok=600, v2_ok=0.2, v2_error=0.1),
    ),
}


CHAT, ONE_TENANT = (
    plan(replace(service(selector={"model": "llama", "namespace": "prod", **more}), service=name))
    for name, more in (("chat", {}), ("one-tenant", {"tenant": "a"}))
)


@cache
def generated(service_: str) -> dict[str, str]:
    (plan_,) = (each for each in (CHAT, ONE_TENANT) if each.service.service == service_)
    return alerts.files(plan_, source="slo.yaml", version="0")


@cache
def cause_rules(service_: str) -> list[dict[str, Any]]:
    """Return the rules on causes, after those that record what they read."""
    files = generated(service_)
    (group,) = libyaml.load(files[f"alerts/{service_}.causes.rules.yaml"])["groups"]
    shared, *_ = libyaml.load(files[f"alerts/{service_}.rules.yaml"])["groups"]
    return [*shared["rules"], *group["rules"]]


def cause_alerts(service_: str) -> list[dict[str, Any]]:
    return [rule for rule in cause_rules(service_) if "alert" in rule]


def condition(cause: str) -> str:
    (rule,) = (rule for rule in cause_alerts("chat") if rule["alert"] == cause)
    return str(rule["expr"])


@dataclass(frozen=True)
class CauseScenario:
    """What is reported every minute, and what must hold at some times, by the rules of a cause.

    Without a cause it is about all of them.
    """

    cause: str
    series: Series
    checks: tuple[tuple[str, str, bool], ...]
    service: str = "chat"


def samples(cause: str) -> str:
    return f'count(ALERTS{{alertname="{cause}",alertstate="firing"}}) == 1'


EVER = 'count_over_time(ALERTS{cause!="",alertstate="firing"}[1h])'
NEVER = (("1h", EVER, False),)
NEEDLESS = {
    ("KvCachePressure", "llm_sequences_max"),
    ("ClientDisconnectsAtTimeout", "llm_disconnect_age_seconds_count"),  # the bucket +Inf has it
}
"""What a cause is named without."""


def without(series: Series, metric: str) -> Series:
    return {name: values for name, values in series.items() if not name.startswith(f"{metric}{{")}


def scenarios() -> Iterator[CauseScenario]:
    for cause, happens in HAPPENS.values():
        yield CauseScenario(cause, happens, (("40m", samples(cause), True),))
    for cause, happens in dict(HAPPENS.values()).items():
        metrics = {name.partition("{")[0] for name in happens}
        for metric in metrics if len(metrics) > 1 else ():
            still_fires = (("1h", EVER, (cause, metric) in NEEDLESS),)
            yield CauseScenario(cause, without(happens, metric), still_fires)
    for cause, happens in ALIKE.values():
        yield CauseScenario(cause, happens, NEVER)
    yield from FURTHER


# Requests are counted by tenant and retries are not: a small tenant has fewer than all retries.
FEW = {RETRIES: rises(2), **requests(v1_ok=50), **requests("a", v1_ok=5)}
STORM = {**FEW, RETRIES: rises(20)}
FOR_ALL_TENANTS = {**waste(6, 100, 2), **waste(0, 5, 0.5, "a")}
STILL = {
    name: stays(0)
    for cause, happens in HAPPENS.values()
    for name in happens
    if cause != "SignalUnavailable"  # whose series are always 1
}
OVER = {series("llm_sequences", state="waiting"): f"0+0x10 3+0x30 0+0x{MINUTES}"}
FURTHER = (
    CauseScenario("", {}, NEVER),
    CauseScenario("", HEALTHY, NEVER),
    # Every series there is, and none of them moves.
    CauseScenario(
        "", {**STILL, **source(1), **ready(1, "decode"), **ready(1, "model"), **gpu(50)}, NEVER
    ),
    # The value is the time-out, as exactly as its bucket is narrow.
    CauseScenario(
        "ClientDisconnectsAtTimeout",
        ages(s60=2, s20=1),
        (("40m", f"({condition('ClientDisconnectsAtTimeout')}) > 60 < 62", True),),
    ),
    CauseScenario(
        "KvCachePressure",
        {**engine(), **OVER},
        tuple((at, samples("KvCachePressure"), at == "30m") for at in ("15m", "30m", "50m")),
    ),
    CauseScenario("RetryStorm", FEW, NEVER, "one-tenant"),
    CauseScenario("RetryStorm", STORM, (("40m", samples("RetryStorm"), True),), "one-tenant"),
    CauseScenario("WastedWork", FOR_ALL_TENANTS, NEVER, "one-tenant"),
)


def test_every_cause_has_a_scenario_and_a_similar_one() -> None:
    causes = {alert.name for alert in CAUSE_ALERTS}
    assert causes == {cause for cause, _ in HAPPENS.values()}
    assert causes == {cause for cause, _ in ALIKE.values()}


def played(scenario: CauseScenario) -> dict[str, object]:
    """Convert a scenario into a test of promtool."""
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": text} for name, text in scenario.series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f"count({expr})",
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}] if holds else [],
            }
            for at, expr, holds in scenario.checks
        ],
    }


def test_cause_alerts_fire_in_their_scenarios_only(promtool: Path, tmp_path: Path) -> None:
    """All in one run, because most of the time is promtool's start."""
    by_rules: dict[tuple[str, str], list[CauseScenario]] = {}
    for scenario in scenarios():
        by_rules.setdefault((scenario.service, scenario.cause), []).append(scenario)
    for (name, cause), of_cause in by_rules.items():
        rules = [
            rule
            for rule in cause_rules(name)
            if "record" in rule or cause in ("", rule["labels"]["cause"])
        ]
        tests = [played(scenario) for scenario in of_cause]
        (tmp_path / f"{name}.{cause}.rules").write_text(
            json.dumps({"groups": [{"name": "causes", "rules": rules}]})
        )
        content = {"rule_files": [f"{name}.{cause}.rules"], "evaluation_interval": "1m"}
        (tmp_path / f"{name}.{cause}.test").write_text(json.dumps({**content, "tests": tests}))
    files = sorted(path.name for path in tmp_path.glob("*.test"))
    command = [promtool, "test", "rules", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service_", ["chat", "one-tenant"])
def test_generated_tests_of_causes_pass(promtool: Path, tmp_path: Path, service_: str) -> None:
    for path, text in generated(service_).items():
        (tmp_path / Path(path).name).write_text(text)
    command = [promtool, "test", "rules", f"{service_}.causes.test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def routed(amtool: Path, tmp_path: Path) -> Callable[..., str]:
    """Return the receiver of an alert with these labels, from amtool."""
    text = alerts.files(example(), source="slo.yaml", version="0")["alerts/chat.route.yaml"]
    names = ("everybody", "chat-page", "chat-ticket")
    settings = {
        "route": {"receiver": "everybody", **libyaml.load(text)},
        "receivers": [{"name": name} for name in names],
    }
    (tmp_path / "alertmanager.yml").write_text(libyaml.dump(settings))

    def receiver(**labels: str) -> str:
        given = [f"{name}={value}" for name, value in labels.items()]
        command = [amtool, "config", "routes", "test", "--config.file=alertmanager.yml", *given]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return receiver


def test_causes_are_routed_like_tickets(routed: Callable[..., str]) -> None:
    here, elsewhere = ({"model": model, "namespace": "prod"} for model in ("llama", "qwen"))
    assert routed(cause="RetryStorm", severity="info", **here) == "chat-ticket"
    assert routed(cause="DecodeStuck", severity="critical", **here) == "chat-page"
    assert routed(cause="RetryStorm", severity="info", **elsewhere) == "everybody"
    assert routed(service="chat", slo="ttft", severity="critical") == "chat-page"
    assert routed(service="chat", slo="ttft", severity="warning") == "chat-ticket"


STEPS = (PolicyStep(Decimal("0.5"), "slow down"), PolicyStep(Decimal(1), "stop"))
TTFT = {"service": "chat", "slo": "ttft"}
CRITICAL, WARNING = ({**TTFT, "severity": severity} for severity in ("critical", "warning"))
PAGE = {**CRITICAL, "alertname": "ChatTtftErrorBudgetBurn", "window": "1h"}
TICKET = {**WARNING, "alertname": "ChatTtftErrorBudgetBurn", "window": "3d"}
HALF, WHOLE = (
    {**WARNING, "alertname": "ChatTtftErrorBudgetPolicy", "step": step} for step in ("50%", "100%")
)
EXHAUSTED = {**WARNING, "alertname": "ChatTtftErrorBudgetExhausted"}
LOW_TRAFFIC = {**WARNING, "alertname": "ChatTtftLowTrafficErrors"}
ABSENT = {**CRITICAL, "alertname": "ChatTtftMetricAbsent"}
ABSENT_IN_PART = {**WARNING, "alertname": "ChatTtftMetricAbsent"}
CAUSES = tuple({"alertname": rule["alert"], **rule["labels"]} for rule in cause_alerts("chat"))
OTHERS = (TICKET, EXHAUSTED, LOW_TRAFFIC)
EVERY = (
    *(PAGE, {**PAGE, "slo": "itl"}, {**PAGE, "service": "code"}, ABSENT, ABSENT_IN_PART),
    *(HALF, WHOLE, *OTHERS, *CAUSES),
)


@pytest.mark.parametrize(
    ("sent", "silenced"),
    [
        ((PAGE, *OTHERS, *CAUSES), OTHERS),
        ((*OTHERS, *CAUSES), (LOW_TRAFFIC,)),
        ((PAGE, ABSENT, ABSENT_IN_PART), ()),
        ((ABSENT, ABSENT_IN_PART, TICKET, *CAUSES), ()),
        (({**PAGE, "slo": "itl"}, TICKET, *CAUSES), ()),
        (({**PAGE, "service": "code"}, TICKET, *CAUSES), ()),
        ((HALF,), ()),
        ((HALF, WHOLE, EXHAUSTED), (HALF, EXHAUSTED)),
        ((HALF, EXHAUSTED), ()),
        ((PAGE, WHOLE), (WHOLE,)),
    ],
)
def test_pages_inhibit_tickets_of_their_objective_and_never_causes(
    manager: Alertmanager,
    manager_file: str,
    sent: tuple[dict[str, str], ...],
    silenced: tuple[dict[str, str], ...],
) -> None:
    assert {alert["cause"] for alert in CAUSES} == {alert.name for alert in CAUSE_ALERTS}
    manager_has(manager, sent)
    if manager_file == SHARED:  # it has no earlier steps, as those of services differ
        silenced = tuple(labels for labels in silenced if labels != HALF)
    wanted = {key(labels): "suppressed" if labels in silenced else "active" for labels in sent}
    # Alertmanager processes alerts one after the other.
    assert read_until(lambda: states(manager), lambda found: found == wanted, 5, 0.1) == wanted


def key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def states(manager: Alertmanager) -> dict[frozenset[tuple[str, str]], str]:
    with urllib.request.urlopen(f"{manager.url}/api/v2/alerts") as answer:  # noqa: S310 - our own
        return {key(alert["labels"]): alert["status"]["state"] for alert in json.load(answer)}


def manager_has(manager: Alertmanager, sent: Iterable[Mapping[str, str]]) -> None:
    """Let these alerts fire, and no others."""
    now = datetime.now(UTC)
    ends = {True: now + timedelta(hours=1), False: now}
    alerts_ = [{"labels": labels, "endsAt": ends[labels in sent].isoformat()} for labels in EVERY]
    body = json.dumps([{"startsAt": (now - timedelta(hours=1)).isoformat(), **a} for a in alerts_])
    request = urllib.request.Request(  # noqa: S310 - likewise
        f"{manager.url}/api/v2/alerts", body.encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()  # noqa: S310


SHARED = "alerts/alertmanager.yaml"
"""The configuration for all services."""


@pytest.fixture(scope="module", params=["alerts/chat.inhibit.yaml", SHARED])
def manager_file(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def manager(
    alertmanager: Callable[..., Alertmanager],
    manager_file: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Alertmanager]:
    folder = tmp_path_factory.mktemp("alertmanager")
    texts = alerts.files(example(policy=STEPS), source="slo.yaml", version="0")
    settings = {
        "route": {"receiver": "none"},
        "receivers": [{"name": "none"}],
        "inhibit_rules": libyaml.load(texts[manager_file])["inhibit_rules"],
    }
    (folder / "alertmanager.yml").write_text(libyaml.dump(settings))
    with alertmanager(folder, folder / "alertmanager.yml") as running:
        yield running
