"""When cause alerts fire on the real promtool, and when they must not, however alike it looks."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from service_example import example, objective

import alerts
from lab.alertmanager import Alertmanager
from slos.causes import CAUSE_ALERTS
from slos.model import PolicyStep
from slos.plan import Plan

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


def engine(kv: float = 0.9, active: float = 10, waiting: float = 3, most: float = 64) -> Series:
    return {
        series("llm_kv_cache_utilization_ratio"): stays(kv),
        series("llm_sequences", state="active"): stays(active),
        series("llm_sequences", state="waiting"): stays(waiting),
        series("llm_sequences_max"): stays(most),
    }


def queue(waiting: str, most: float | None = 64) -> Series:
    known = {} if most is None else {series("llm_sequences_max"): stays(most)}
    return {series("llm_sequences", state="waiting"): waiting, **known}


def ages(**left: float) -> Series:
    """Clients that leave each minute by the age of their streams: ``s60=2`` is two at 60 s."""
    edges = (5, 5.25, 20, 30, 60, 62, 90, 120, 300)
    at = {float(name.removeprefix("s")): count for name, count in left.items()}
    metric = "llm_disconnect_age_seconds"
    return {
        series(f"{metric}_count"): rises(sum(at.values())),
        **{
            series(f"{metric}_bucket", le=f"{edge:.1f}" if edge != 5.25 else "5.25"): rises(
                sum(count for age, count in at.items() if age + 0.5 <= edge)
            )
            for edge in edges
        },
    }


def requests(**by: float) -> Series:
    """Count requests each minute by version and outcome: ``v1_ok=600``."""
    return {
        series("llm_requests_total", version=name[1], outcome=name[3:]): rises(count)
        for name, count in by.items()
    }


def readers(waited: float, live: float) -> Series:
    return {
        series("llm_client_backpressure_seconds_total"): rises(waited),
        series("llm_live_streams"): stays(live),
    }


def waste(wasted: float, output: float, left: float) -> Series:
    return {
        series("llm_wasted_tokens_total"): rises(wasted),
        series("llm_tokens_total", direction="output"): rises(output),
        series("llm_streaming_disconnects_total", phase="mid_stream"): rises(left),
    }


def gpu(used: float, instance: str = "a", model: str = "llama") -> Series:
    where = f'namespace="prod",instance="{instance}"'
    return {
        f'nv_gpu_memory_used_bytes{{{where},gpu_uuid="0"}}': stays(used),
        f'nv_gpu_memory_total_bytes{{{where},gpu_uuid="0"}}': stays(100),
        f'nv_inference_pending_request_count{{{where},model="{model}",version="1"}}': stays(0),
    }


def source(up: float, model: str = "llama") -> Series:
    where = 'namespace="prod",instance="a"'
    return {
        f'tokenslo_source_up{{{where},source="triton"}}': stays(up),
        f'tokenslo_model_info{{{where},model="{model}",version="1"}}': stays(1),
    }


def ready(value: float, layer: str, model: str = "llama") -> Series:
    of = f'namespace="prod",model="{model}",version="1"'
    return {f'tokenslo_ready{{{of},layer="{layer}"}}': stays(value)}


PAUSED = series("llm_sequences", state="paused")
PREEMPTED = series("llm_preemptions_total")
RETRIES = series("llm_suspected_retries_total")
LOST = 'tokenslo_source_lost_records_total{namespace="prod",source="iterations"}'

HAPPENS: Mapping[str, tuple[str, Series]] = {
    "room is short and sequences wait": ("KvCachePressure", engine()),
    "the maximum is not known": (
        "KvCachePressure",
        {k: v for k, v in engine().items() if "max" not in k},
    ),
    "sequences are paused": ("SequencesPaused", {PAUSED: stays(2)}),
    "only preemptions are counted": ("SequencesPaused", {PREEMPTED: rises(2)}),
    "the queue is long and grows": ("QueueGrowing", queue("20+2x60")),
    "no token comes": ("DecodeStuck", ready(0, "decode")),
    "clients leave at a minute": ("DisconnectsAtOneAge", ages(s60=2, s20=1)),
    "every fifth request is a retry": ("RetryStorm", {RETRIES: rises(10), **requests(v1_ok=50)}),
    "streams wait a fifth of their time": ("SlowClients", readers(120, 10)),
    "a fifth of all tokens is for nobody": ("WorkWasted", waste(20, 80, 2)),
    "records are lost": ("EngineStatsLost", {LOST: rises(1)}),
    "a source is down": ("SidecarBlind", source(0)),
    "a model is not loaded": ("ModelNotReady", ready(0, "model")),
    "a GPU is full": ("GpuMemoryNearFull", gpu(99)),
    "the new version fails": ("BadRollout", requests(v1_ok=600, v2_ok=500, v2_error=100)),
    "the new version fails, and the old one a little": (
        "BadRollout",
        requests(v1_ok=590, v1_error=10, v2_ok=500, v2_timeout=100),
    ),
}

ALIKE: Mapping[str, tuple[str, Series]] = {
    "a full cache and nobody waits": ("KvCachePressure", engine(waiting=0)),
    "sequences wait beside an empty cache": ("KvCachePressure", engine(kv=0.3)),
    "sequences wait for the batch": ("KvCachePressure", engine(active=67)),
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
    "a queue before nobody knows what": ("QueueGrowing", queue("20+2x60", None)),
    "an engine decodes": ("DecodeStuck", ready(1, "decode")),
    "another model is stuck": ("DecodeStuck", ready(0, "decode", "qwen")),
    "people leave when they want to": (
        "DisconnectsAtOneAge",
        ages(s10=1, s25=1, s60=2, s70=1, s100=1),
    ),
    "three clients leave at a minute": ("DisconnectsAtOneAge", ages(s60=0.1)),
    "retries are few among many": ("RetryStorm", {RETRIES: rises(2), **requests(v1_ok=50)}),
    "one retry of two requests": ("RetryStorm", {RETRIES: rises(0.5), **requests(v1_ok=1)}),
    "one slow client": ("SlowClients", readers(60, 1)),
    "streams wait a little": ("SlowClients", readers(12, 10)),
    "tokens in flight when clients leave": ("WorkWasted", waste(2, 98, 2)),
    "one long answer for nobody": ("WorkWasted", waste(90, 10, 0.1)),
    "records were lost once": ("EngineStatsLost", {LOST: stays(5)}),
    "the sidecar of another model is blind": ("SidecarBlind", source(0, "qwen")),
    "all is read": ("SidecarBlind", source(1)),
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
        "BadRollout",
        requests(v1_ok=500, v1_error=100, v2_ok=500, v2_error=100),
    ),
    "there is one version": ("BadRollout", requests(v1_ok=500, v1_error=100)),
    "the old version is idle": (
        "BadRollout",
        requests(v1_ok=0, v1_error=0, v2_ok=500, v2_error=100),
    ),
    "the new version fails once in a while": (
        "BadRollout",
        requests(v1_ok=600, v2_ok=597, v2_error=3),
    ),
    "the new version fails one of three requests": (
        "BadRollout",
        requests(v1_ok=600, v2_ok=0.2, v2_error=0.1),
    ),
}


def plan_of(cause: str) -> Plan:
    """Return a plan that has this cause, and as little beside as can be."""
    (alert,) = (each for each in CAUSE_ALERTS if each.name == cause)
    return example(objective(alert.symptoms[0]))


def told(cause: str, state: str = "firing") -> str:
    return f'count(ALERTS{{alertname="Chat{cause}",alertstate="{state}"}}) == 1'


def ever(cause: str) -> str:
    return f'count_over_time(ALERTS{{alertname="Chat{cause}",alertstate="firing"}}[1h])'


Story = Callable[..., None]


def test_every_cause_has_a_story_and_something_alike() -> None:
    causes = {alert.name for alert in CAUSE_ALERTS}
    assert causes == {cause for cause, _ in HAPPENS.values()}
    assert causes == {cause for cause, _ in ALIKE.values()}


@pytest.mark.parametrize("what", HAPPENS)
def test_a_cause_is_named(story: Story, what: str) -> None:
    cause, happens = HAPPENS[what]
    story(plan_of(cause), happens, ("40m", told(cause), True), every="1m")


@pytest.mark.parametrize("what", ALIKE)
def test_what_only_looks_alike_is_not_named(story: Story, what: str) -> None:
    cause, happens = ALIKE[what]
    story(plan_of(cause), happens, ("1h", ever(cause), False), every="1m")


def test_a_spike_is_named_by_its_timeout(story: Story) -> None:
    other = 'ALERTS{alertname="ChatDisconnectsAtOneAge",timeout!="60s"}'
    story(
        plan_of("DisconnectsAtOneAge"),
        ages(s60=2, s20=1),
        ("40m", 'ALERTS{alertname="ChatDisconnectsAtOneAge",timeout="60s"}', True),
        ("40m", f"count_over_time({other}[40m])", False),
        every="1m",
    )


def test_causes_end_when_their_condition_does(story: Story) -> None:
    over = f"0+0x10 3+0x30 0+0x{MINUTES}"
    happens = {**engine(), series("llm_sequences", state="waiting"): over}
    story(
        plan_of("KvCachePressure"),
        happens,
        ("15m", told("KvCachePressure"), False),
        ("30m", told("KvCachePressure"), True),
        ("45m", told("KvCachePressure"), False),
        every="1m",
    )


def test_nothing_is_named_where_nothing_happens(story: Story) -> None:
    """Every series there is, and none of them moves."""
    still: dict[str, str] = {}
    for _, happens in HAPPENS.values():
        still |= dict.fromkeys(happens, stays(0))
    still |= {**source(1), **ready(1, "decode"), **ready(1, "model"), **gpu(50)}
    named = 'ALERTS{cause!=""}'
    story(example(), still, ("1h", f"count_over_time({named}[1h])", False), every="1m")


@pytest.fixture
def routed(amtool: Path, tmp_path: Path) -> Callable[..., str]:
    """Ask amtool for the receiver of an alert with these labels."""
    text = alerts.files(example(), source="slo.yaml", version="0")["alerts/chat.route.yaml"]
    names = ("everybody", "chat-page", "chat-ticket")
    settings = {
        "route": {"receiver": "everybody", **yaml.safe_load(text)},
        "receivers": [{"name": name} for name in names],
    }
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(settings))

    def receiver(**labels: str) -> str:
        given = [f"{name}={value}" for name, value in labels.items()]
        command = [amtool, "config", "routes", "test", "--config.file=alertmanager.yml", *given]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return receiver


def test_causes_go_where_tickets_go(routed: Callable[..., str]) -> None:
    assert routed(service="chat", cause="RetryStorm", severity="info") == "chat-ticket"
    assert routed(service="chat", slo="ttft", severity="critical") == "chat-page"
    assert routed(service="chat", slo="ttft", severity="warning") == "chat-ticket"
    assert routed(service="code", cause="RetryStorm", severity="info") == "everybody"


STEPS = (PolicyStep(Decimal("0.5"), "slow down"), PolicyStep(Decimal(1), "stop"))
PAGE = {"alertname": "ChatTtftBudgetBurn", "slo": "ttft", "window": "1h"}
TICKET = {"alertname": "ChatTtftBudgetBurn", "slo": "ttft", "window": "3d"}
CAUSE = {"alertname": "ChatRetryStorm", "cause": "RetryStorm"}
HALF, WHOLE = (
    {"alertname": "ChatTtftBudgetPolicy", "slo": "ttft", "step": step} for step in ("50%", "100%")
)
EXHAUSTED = {"alertname": "ChatTtftBudgetExhausted", "slo": "ttft"}
TRICKLE = {"alertname": "ChatTtftFailingTrickle", "slo": "ttft"}


@pytest.mark.parametrize(
    ("sent", "silenced"),
    [
        ((PAGE, TICKET, CAUSE, EXHAUSTED, TRICKLE), (TICKET, CAUSE, EXHAUSTED, TRICKLE)),
        ((TICKET, CAUSE, EXHAUSTED, TRICKLE), (TRICKLE,)),
        ((CAUSE,), ()),
        (({**PAGE, "slo": "itl"}, TICKET, CAUSE), (CAUSE,)),
        (({**PAGE, "service": "code"}, TICKET, CAUSE), ()),
        ((HALF,), ()),
        ((HALF, WHOLE, EXHAUSTED), (HALF, EXHAUSTED)),
        ((HALF, EXHAUSTED), ()),
        ((PAGE, WHOLE), (WHOLE,)),
    ],
)
def test_what_is_told_already_silences_what_follows_from_it(
    manager: Alertmanager,
    sent: tuple[dict[str, str], ...],
    silenced: tuple[dict[str, str], ...],
) -> None:
    manager_has(manager, sent)
    url = f"{manager.url}/api/v2/alerts"
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - a URL of our own
        states = {
            tuple(sorted(alert["labels"].items())): alert["status"]["state"]
            for alert in json.load(answer)
        }
    for labels in sent:
        state = states[tuple(sorted({"service": "chat", **labels}.items()))]
        assert state == ("suppressed" if labels in silenced else "active"), labels


def manager_has(manager: Alertmanager, sent: Iterable[Mapping[str, str]]) -> None:
    """Let these alerts fire, and no others."""
    every = (PAGE, {**PAGE, "slo": "itl"}, {**PAGE, "service": "code"}, TICKET, CAUSE, HALF, WHOLE)
    now = datetime.now(UTC)
    ends = {True: now + timedelta(hours=1), False: now}
    alerts_ = [
        {"labels": {"service": "chat", **labels}, "endsAt": ends[labels in sent].isoformat()}
        for labels in (*every, EXHAUSTED, TRICKLE)
    ]
    body = json.dumps([{"startsAt": (now - timedelta(hours=1)).isoformat(), **a} for a in alerts_])
    request = urllib.request.Request(  # noqa: S310 - likewise
        f"{manager.url}/api/v2/alerts", body.encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()  # noqa: S310


@pytest.fixture(scope="module")
def manager(
    alertmanager: Callable[..., Alertmanager], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Alertmanager]:
    folder = tmp_path_factory.mktemp("alertmanager")
    plan = example(objective("ttft"), policy=STEPS)
    text = alerts.files(plan, source="slo.yaml", version="0")["alerts/chat.inhibit.yaml"]
    settings = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump({**settings, **yaml.safe_load(text)}))
    with alertmanager(folder, folder / "alertmanager.yml") as running:
        yield running
