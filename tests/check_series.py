"""Series of a healthy and of a sick service for each diagnosis check, over today and yesterday."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from service_example import CLAUSES, THRESHOLDS

from runbooks.check_queries import Subject
from slos.indicators import INDICATORS
from slos.model import Objective, Service
from slos.plan import plan
from slos.queries import SERIES

EVERY = 15
"""Seconds between two samples."""
MINUTES = 20
"""The length of each day's series, up to now or to the same time yesterday."""
DAY = 86_400


@dataclass(frozen=True)
class Shape:
    """A series: its level, or its increase per second if ``counter``.

    ``before`` is that of yesterday, by default as today; None is no series. ``minutes`` are the
    last ones in which today's series exists; ``burst`` is the level of the last one.
    """

    now: float
    before: float | None
    counter: bool
    minutes: float = MINUTES
    burst: float | None = None


Data = Mapping[str, Shape]
_AS_NOW = object()


def _shape(now: float, before: object, counter: bool, minutes: float) -> Shape:
    past = now if before is _AS_NOW else before
    assert past is None or isinstance(past, (int, float))
    return Shape(now, past, counter, minutes)


def rate(now: float, before: object = _AS_NOW) -> Shape:
    return _shape(now, before, True, MINUTES)


def level(now: float, before: object = _AS_NOW, minutes: float = MINUTES) -> Shape:
    return _shape(now, before, False, minutes)


def of(metric: str, **labels: str) -> str:
    """Name a series; the service's own labels are added where the metric has them."""
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def sequences(
    instance: str = "a", *, active: float, waiting: float = 0, most: float = 64
) -> dict[str, Shape]:
    return {
        of("llm_sequences", state="active", instance=instance): level(active),
        of("llm_sequences", state="waiting", instance=instance): level(waiting),
        of("llm_sequences", state="decoding", instance=instance): level(active - waiting),
        of("llm_sequences_max", instance=instance): level(most),
    }


def requests(ok: float = 10, before: object = _AS_NOW, **others: float) -> dict[str, Shape]:
    return {
        of("llm_requests_total", outcome="ok"): rate(ok, before),
        **{of("llm_requests_total", outcome=name): rate(count) for name, count in others.items()},
    }


def tokens(direction: str, now: float, before: object = _AS_NOW) -> dict[str, Shape]:
    return {of("llm_tokens_total", direction=direction): rate(now, before)}


def latency(metric: str, mean: float, before: float | None = None) -> dict[str, Shape]:
    """Observe ten a second, with this mean."""
    past = mean if before is None else before
    return {
        of(f"{metric}_count"): rate(10),
        of(f"{metric}_sum"): rate(10 * mean, 10 * past),
    }


def buckets(metric: str, counts: Mapping[str, float], **labels: str) -> dict[str, Shape]:
    """Observe per second, cumulated by bucket boundary; the last is all of them."""
    every = list(counts.values())[-1]
    return {
        **{of(f"{metric}_bucket", le=le, **labels): rate(n) for le, n in counts.items()},
        of(f"{metric}_bucket", le="+Inf", **labels): rate(every),
        of(f"{metric}_count", **labels): rate(every),
    }


def disconnects(early: float = 0.0, late: float = 0.0, before: object = _AS_NOW) -> Data:
    metric = "llm_streaming_disconnects_total"
    return {
        of(metric, phase="before_first_token"): rate(early, before),
        of(metric, phase="mid_stream"): rate(late, before),
    }


def failed(reason: str, share: float) -> Data:
    outcome = "error" if reason == "BACKEND" else "shed"
    metric = "llm_request_failures_total"
    return {**requests(), of(metric, outcome=outcome, reason=reason): rate(10 * share)}


def ready(layer: str, value: float, version: str = "1", minutes: float = MINUTES) -> Data:
    return {of("tokenslo_ready", layer=layer, version=version): level(value, minutes=minutes)}


def recorded(series: str, now: float, before: object = _AS_NOW) -> Data:
    return {of(series, slo="one"): level(now, before)}


def stages(tokenizer: float, before: float) -> Data:
    """Return an ensemble whose engine is slower than yesterday, with one other stage."""
    duration, info = "nv_inference_request_duration_us", "tokenslo_model_info"
    return {
        **requests(),
        of(duration, model="tokenizer", version="1"): rate(1e7 * tokenizer, 1e7 * before),
        of(duration, model="ensemble", version="1"): rate(9e7, 1e7),
        of(duration, model="bls", version="1"): rate(9e7, 1e7),
        of(duration, model="llama", version="1"): rate(9e7, 1e7),
        of("nv_inference_pending_request_count", model="llama", version="1"): level(0),
        of(info, model="ensemble", backend="ensemble", decoupled="false"): level(1),
        of(info, model="bls", backend="python", decoupled="true"): level(1),
        of(info, model="tokenizer", backend="python", decoupled="false"): level(1),
    }


def versions(late: float) -> Data:
    """Return first tokens of two versions; ``late`` is the bad share of the second."""
    metric = "llm_time_to_first_token_seconds"
    return {
        **buckets(metric, {"0.8": 9.99, "10.0": 10}, version="1"),
        **buckets(metric, {"0.8": 10 * (1 - late), "10.0": 10}, version="2"),
    }


def prompts_by_version(first: float, second: float) -> Data:
    return {
        of("llm_requests_total", outcome="ok", version="1"): rate(10),
        of("llm_requests_total", outcome="ok", version="2"): rate(1),
        of("llm_tokens_total", direction="input", version="1"): rate(10 * first),
        of("llm_tokens_total", direction="input", version="2"): rate(second),
    }


def http(failed_a: float) -> Data:
    metric = "http_requests_total"
    return {
        of(metric, code="200", instance="a"): rate(10),
        of(metric, code="500", instance="a"): rate(failed_a),
        of(metric, code="200", instance="b"): rate(10),
        of(metric, code="500", instance="b"): rate(0),
    }


def goodput(bad: float) -> Data:
    metric = "llm_goodput_requests_total"
    return {
        of(metric, result="good", clause=""): rate(10),
        of(metric, result="bad", clause="ttft"): rate(bad),
    }


def streams(broken: float) -> Data:
    metric = "llm_streams_total"
    return {
        of(metric, phase="complete", outcome="ok"): rate(10),
        of(metric, phase="mid_stream", outcome="error"): rate(broken),
    }


def events(threshold: str) -> Data:
    labels = {"signal": "ttft", "threshold": threshold, "result": "good"}
    return {**requests(), of("llm_slo_events_total", **labels): rate(10)}


def signal(quality: str) -> Data:
    labels = {"signal": "ttft", "method": "wire", "quality": quality, "reason": ""}
    return {of("tokenslo_signal_info", **labels): level(1)}


TTFT, TPOT = "llm_time_to_first_token_seconds", "llm_time_per_output_token_seconds"
ITL, PREFILL, QUEUE = (
    "llm_inter_token_latency_seconds",
    "llm_request_prefill_seconds",
    "llm_request_queue_seconds",
)
E2E = "llm_request_duration_seconds"
AGES, GAPS = "llm_disconnect_age_seconds", "llm_stream_max_gap_seconds"
UP, BUILD = of("tokenslo_source_up", source="triton"), of("tokenslo_build_info")

SERVER = of("tokenslo_ready", layer="server", model="", version="")
SERVER_UP, SERVER_BACK = {SERVER: level(1)}, {SERVER: level(1, minutes=5)}
LEFT = of("llm_requests_total", outcome="client_disconnected")
PARTIAL = of("llm_partial_response_tokens_total")
DIED = "llm_requests_without_first_token_total"
SOURCE_ERRORS = of("tokenslo_source_errors_total", source="triton", kind="refused")
LOST = of("tokenslo_source_lost_records_total", source="engine")
KV, MEMORY = of("llm_kv_cache_utilization_ratio"), of("llm_memory_bytes", kind="gpu")
HTTP = {
    "bad": 'http_requests_total{{namespace="{0}",code="500"}}',
    "total": 'http_requests_total{{namespace="{0}"}}',
}
ERRORS = {
    "bad": 'errors_total{{namespace="{0}"}}',
    "total": 'sent_total{{namespace="{0}"}}',
}


@dataclass(frozen=True)
class Case:
    """Series of a healthy and of a sick service, and the indicator of their objective.

    ``undecided`` are series of which the check has no result.
    """

    healthy: Data
    sick: Data
    indicator: str = "ttft"
    queries: Mapping[str, str] = field(default_factory=dict)
    undecided: Data = field(default_factory=dict)


CASES: Mapping[str, Case] = {
    "cause_alerts": Case(
        {}, {of("ALERTS", alertstate="firing", cause="KvCachePressure"): level(1)}
    ),
    "goes_on": Case(
        recorded("slo:error_ratio:rate5m", 0.001), recorded("slo:error_ratio:rate5m", 0.2)
    ),
    "still_burning": Case(
        recorded("slo:error_ratio:rate5m", 0.001), recorded("slo:error_ratio:rate5m", 0.2)
    ),
    "more_events": Case(
        {of("slo:total:increase1m", slo="one"): Shape(600, 600, counter=False, burst=1500)},
        recorded("slo:total:increase1m", 1800, 600),
    ),
    "versions": Case(versions(0.002), versions(0.5)),
    "instances": Case(http(0.01), http(3), "bad_events", HTTP),
    "clause": Case({**goodput(bad=0.01)}, {**goodput(bad=5)}, "goodput"),
    "sources": Case({UP: level(1)}, {UP: level(0)}),
    "scraped": Case({BUILD: level(1)}, {}),
    "source_errors": Case({UP: level(1)}, {UP: level(0), SOURCE_ERRORS: rate(0.1)}),
    "lost": Case({LOST: rate(0)}, {LOST: rate(3)}),
    "estimate": Case(signal("exact"), signal("estimate")),
    "unavailable": Case(signal("exact"), signal("unavailable")),
    "queries": Case(http(0), {}, "bad_events", HTTP),
    "contradiction": Case(
        {of("errors_total"): rate(1), of("sent_total"): rate(10)},
        {of("errors_total"): rate(12), of("sent_total"): rate(10)},
        "bad_events",
        ERRORS,
    ),
    "threshold": Case(events("0.8"), events("2")),
    "selected": Case(latency(E2E, 2), {of(f"{E2E}_count", model="llama-2"): rate(1)}, "e2e"),
    "stuck": Case(ready("decode", 1), ready("decode", 0)),
    "waiting": Case(sequences(active=20, waiting=0.1), sequences(active=64, waiting=9)),
    "batch": Case(sequences(active=64, waiting=30), sequences(active=64, waiting=2)),
    "no_evict_waiting": Case(sequences(active=64, waiting=3), sequences(active=30, waiting=8)),
    "kv": Case({KV: level(0.6)}, {KV: level(0.97)}),
    "paused": Case(
        {of("llm_sequences", state="paused"): level(0)},
        {of("llm_sequences", state="paused"): level(3)},
    ),
    "traffic_one_instance": Case(
        {**sequences(active=64, waiting=5), **sequences("b", active=60, waiting=4)},
        {**sequences(active=64, waiting=12), **sequences("b", active=4)},
    ),
    "output": Case(tokens("output", 900, 1000), tokens("output", 200, 1000)),
    "throughput": Case(
        {**tokens("output", 1100, 1000), **latency(TPOT, 0.03, 0.03)},
        {**tokens("output", 1100, 1000), **latency(TPOT, 0.09, 0.03)},
    ),
    "memory": Case({MEMORY: level(60e9)}, {MEMORY: level(75e9, 60e9)}),
    "errors": Case(failed("BACKEND", 0.001), failed("BACKEND", 0.2)),
    "rejections": Case(failed("REJECTED", 0.001), failed("REJECTED", 0.2)),
    "died": Case(
        {
            **requests(),
            of(DIED, outcome="error"): rate(0.01),
            of(DIED, outcome="client_disconnected"): rate(3),
        },
        {**requests(), of(DIED, outcome="error"): rate(3)},
    ),
    "broken": Case(streams(broken=0), streams(broken=2)),
    "prompts": Case(
        {**requests(5, 10), LEFT: rate(5, 0), **tokens("input", 5000)},
        {**requests(), **tokens("input", 40_000, 5000)},
        undecided={**requests(0.01, 10), **tokens("input", 40, 5000)},
    ),
    "answers": Case(
        {**requests(5, 10), PARTIAL: rate(1000, 0), **tokens("output", 1500, 1000)},
        {**requests(), **tokens("output", 4000, 1000)},
        undecided={**requests(0.01, 10), **tokens("output", 4, 1000)},
    ),
    "arrivals": Case(requests(10), requests(30, 10)),
    "reuse": Case(
        {**requests(5, 10), of("llm_kv_cache_reused_blocks_total"): rate(50, 100)},
        {**requests(), of("llm_kv_cache_reused_blocks_total"): rate(10, 100)},
    ),
    "queue_share": Case(
        {**latency(QUEUE, 0.02), **latency(TTFT, 0.3)}, {**latency(QUEUE, 2), **latency(TTFT, 2.3)}
    ),
    "prefill_slow": Case(
        {**requests(), **tokens("input", 20_000, 5000), **latency(PREFILL, 0.8, 0.2)},
        {**requests(), **tokens("input", 5000), **latency(TTFT, 0.8, 0.2)},
        undecided={
            **requests(),
            **tokens("input", 5000),
            **latency(TTFT, 8, 0.2),
            **sequences(active=64, waiting=9),
        },
    ),
    "pace_slow": Case(latency(TPOT, 0.03), latency(ITL, 0.09, 0.03)),
    "stalls": Case(
        buckets(GAPS, {"0.1": 9.5, "0.5": 10}), buckets(GAPS, {"0.1": 5, "0.5": 6, "10.0": 10})
    ),
    "gateway": Case(
        buckets(TTFT, {"0.8": 9.9, "10.0": 10}), buckets(TTFT, {"0.8": 5, "10.0": 6, "40.0": 10})
    ),
    "stage_slow": Case(stages(0.06, 0.05), stages(0.4, 0.05)),
    "not_ready": Case(
        {**ready("model", 0), **ready("model", 1, version="2")},
        {**ready("model", 0), **ready("model", 0, version="2")},
    ),
    "recent_start": Case(
        {**ready("model", 1), **ready("model", 0, version="2"), **SERVER_UP, BUILD: level(1)},
        {**ready("model", 1), **SERVER_BACK, BUILD: level(1)},
    ),
    "probe_fails": Case(
        {of("tokenslo_probe_success"): level(1)}, {of("tokenslo_probe_success"): level(0)}
    ),
    "short_answers": Case(
        {**requests(), **tokens("output", 1000)},
        {**requests(), **tokens("output", 100, 1000)},
        undecided={**requests(0.01, 10), **tokens("output", 0.1, 1000)},
    ),
    "mix_by_version": Case(prompts_by_version(500, 480), prompts_by_version(500, 60)),
    "ages": Case(
        {
            **disconnects(late=0.2),
            **buckets(AGES, {"0.5": 0.1, "5.0": 0.16, "20.0": 0.19, "31.0": 0.2}),
        },
        {**disconnects(late=0.2), **buckets(AGES, {"0.5": 0.01, "30.0": 0.01, "31.0": 0.2})},
    ),
    "early": Case(
        {**requests(), **disconnects(early=0.1, late=3)}, {**requests(), **disconnects(early=3)}
    ),
    "disconnects_up": Case(
        {**requests(), **disconnects(late=2)}, {**requests(), **disconnects(late=3, before=0)}
    ),
    "server_timeouts": Case(requests(timeout=0.01), requests(timeout=3)),
    "retries": Case(
        {**requests(), of("llm_suspected_retries_total"): rate(0.1)},
        {**requests(), of("llm_suspected_retries_total"): rate(5)},
    ),
    "reading": Case(
        {of("llm_client_backpressure_seconds_total"): rate(0.1), of("llm_live_streams"): level(20)},
        {of("llm_client_backpressure_seconds_total"): rate(8), of("llm_live_streams"): level(20)},
    ),
    "wasted": Case(
        {of("llm_wasted_tokens_total"): rate(1), **tokens("output", 1000)},
        {of("llm_wasted_tokens_total"): rate(500), **tokens("output", 1000)},
    ),
}


def subject(check: str, state: str) -> Subject:
    """Return the objective of a service that a check and a state have to themselves."""
    name, case = f"{check}-{state}".replace("_", "-"), CASES[check]
    threshold = THRESHOLDS[INDICATORS[case.indicator].threshold] if not case.queries else None
    objective = Objective(
        "one",
        case.indicator,
        Decimal("0.99"),
        threshold,
        clauses=CLAUSES if case.indicator == "goodput" else {},
        queries={part: text.format(name) for part, text in case.queries.items()},
    )
    selector = {} if case.queries else {"model": "llama", "namespace": name}
    service = Service(
        "slo.yaml", name, window=Decimal(28 * DAY), selector=selector, objectives=(objective,)
    )
    planned = plan(service)
    return Subject(planned, planned.objectives[0], planned.causes)


def openmetrics(now: int) -> Iterator[str]:
    """Yield the lines of all series; those of the state ``young`` lack yesterday."""
    for check, case in CASES.items():
        states = {
            "healthy": case.healthy,
            "sick": case.sick,
            "young": case.healthy,
            "undecided": case.undecided,
        }
        for state, data in states.items():
            name = f"{check}-{state}".replace("_", "-")
            for series, shape in data.items():
                labelled = _labelled(series, name)
                if shape.before is not None and state != "young":
                    yield from _lines(labelled, shape, now - DAY, today=False)
                yield from _lines(labelled, shape, now, today=True)
    yield "# EOF\n"


def _labelled(series: str, name: str) -> str:
    metric, _, labels = series.partition("{")
    labels = labels.removesuffix("}")
    more = {"namespace": name, "instance": "a"}
    if metric in SERIES or metric == "ALERTS":
        more["model"] = "llama"
    if metric in SERIES and "version" in SERIES[metric]:
        more["version"] = "1"
    if metric.startswith("slo:"):
        more = {"service": name}
    if metric == "llm_goodput_requests_total":
        more["objective"] = f"{name}/one"
    added = (f'{key}="{value}"' for key, value in more.items() if f'{key}="' not in labels)
    return f"{metric}{{{','.join(filter(None, (labels, *added)))}}}"


def _lines(series: str, shape: Shape, end: int, *, today: bool) -> Iterator[str]:
    value = shape.now if today else shape.before
    assert value is not None
    minutes, burst = (shape.minutes, shape.burst) if today else (MINUTES, None)
    for age in range(int(minutes * 60), -120, -EVERY):
        level = value if burst is None or age > 60 else burst
        grown = value * (MINUTES * 60 - age) if shape.counter else level
        yield f"{series} {grown:g} {end - age}\n"
