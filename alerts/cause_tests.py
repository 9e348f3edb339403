"""Generate promtool tests of cause alerts: each one fires under its condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from alerts.rules import INTERVAL
from promql.expr import Matcher, Vector, equal, vector
from slos.causes import cause_labels
from slos.durations import format_duration, parse_duration
from slos.generated_yaml import document
from slos.names import UNAVAILABLE
from slos.plan import Plan, PlannedCause
from slos.queries import INSTANCE, Scope
from slos.signals import MODEL_LABELS, SIGNALS
from slos.yaml_text import Commented

Item = dict[str, object]
Series = Mapping[Vector, str]

_MINUTES = 60
# Rates must fill before a condition holds, then the next evaluation must see it.
_FILLING = parse_duration("10m")


def text(plan: Plan, rule_files: Sequence[str], *, source: str, version: str) -> str:
    """Return the promtool test file for the cause alerts of a service."""
    service = plan.service.service
    return document(
        f"Tests of cause alerts. Run: promtool test rules {service}.causes.test.yaml",
        {
            "rule_files": rule_files,
            "evaluation_interval": INTERVAL,
            "tests": [*_tests(plan)],
        },
        source=source,
        version=version,
    )


def _tests(plan: Plan) -> Iterator[Item]:
    """Yield scenarios of causes; the series of one do not affect the others in it."""
    scope = plan.scope
    known = {planned.cause.name: planned for planned in plan.causes}
    for names in _SCENARIOS:
        chosen = [planned for name, planned in known.items() if name in names]
        if chosen:
            series: dict[Vector, str] = {}
            for planned in chosen:
                series |= _HAPPENS[planned.cause.name](scope)
            yield _test(plan, chosen, series)


def _test(plan: Plan, chosen: list[PlannedCause], series: Series) -> Item:
    checks = [check for planned in chosen for check in _checks(plan, planned)]
    inputs = [{"series": str(each), "values": text} for each, text in series.items()]
    return Commented(
        "Series of an hour in which these conditions hold.",
        {
            "name": f"causes are named: {', '.join(planned.cause.name for planned in chosen)}",
            "interval": "1m",
            "input_series": inputs,
            "promql_expr_test": checks,
        },
    )


def _checks(plan: Plan, planned: PlannedCause) -> Iterator[Item]:
    lasting = parse_duration(planned.cause.lasting)
    labels = {"alertname": planned.alert.name, "alertstate": "firing"}
    firing = vector("ALERTS", {**labels, **cause_labels(plan.service.selector)})
    for seconds, count in ((lasting / 2, 0), (lasting + _FILLING, 1)):
        yield {
            "expr": f"count({firing})",
            "eval_time": format_duration(seconds),
            "exp_samples": [{"labels": "{}", "value": 1}] if count else [],
        }


def _stays(value: str) -> str:
    return f"{value}+0x{_MINUTES}"


def _rises(by: int) -> str:
    return f"0+{by}x{_MINUTES}"


def _labelled(series: Vector, **labels: str) -> Vector:
    return replace(series, matchers=(*series.matchers, *equal(labels)))


def _sequences(scope: Scope, **states: str) -> dict[Vector, str]:
    return {scope.gauge(f"sequences_{state}"): value for state, value in states.items()}


def _kv_pressure(scope: Scope) -> Series:
    states = {"active": _stays("10"), "waiting": _stays("3"), "max": _stays("64")}
    return {scope.gauge("kv_utilization"): _stays("0.9"), **_sequences(scope, **states)}


def _disconnects(scope: Scope) -> Series:
    metric = SIGNALS["disconnect_age"].metric
    buckets = {"60": _stays("0"), "62": _rises(2), "+Inf": _rises(2)}
    return {
        **{
            _here(scope.series(f"{metric}_bucket", Matcher("le", "=", bound))): values
            for bound, values in buckets.items()
        },
        _here(scope.series(f"{metric}_count")): _rises(2),
    }


def _requests(scope: Scope) -> dict[Vector, str]:
    """Return requests of two versions, of which the second fails half."""
    every = scope.series(SIGNALS["requests"].metric)
    if "version" in scope.selector:
        return {_labelled(every, outcome="ok"): _rises(1200)}
    return {
        _labelled(every, version="1", outcome="ok"): _rises(600),
        _labelled(every, version="2", outcome="ok"): _rises(300),
        _labelled(every, version="2", outcome="error"): _rises(300),
    }


def _wasted(scope: Scope) -> Series:
    output = SIGNALS["output_tokens"]
    return {
        scope.series(SIGNALS["wasted_tokens"].metric): _rises(600),
        scope.series(output.metric, *equal(output.fixed)): _rises(600),
        scope.series(SIGNALS["disconnects"].metric): _rises(6),
    }


def _memory(scope: Scope) -> Series:
    chosen = [label for label in MODEL_LABELS if label in scope.selector]
    serving = (*scope.foreign(), *(Matcher(each, "=", scope.selector[each]) for each in chosen))
    series = {
        vector("nv_gpu_memory_used_bytes", scope.foreign()): "99",
        vector("nv_gpu_memory_total_bytes", scope.foreign()): "100",
        vector("nv_inference_pending_request_count", serving): "0",
    }
    return {_here(each): _stays(value) for each, value in series.items()}


def _here(series: Vector) -> Vector:
    """Add the label ``instance`` to a series, unless the selector has it."""
    known = any(matcher.label == INSTANCE for matcher in series.matchers)
    return series if known else _labelled(series, **{INSTANCE: "server"})


_HAPPENS: Mapping[str, Callable[[Scope], Series]] = {
    "KvCachePressure": _kv_pressure,
    "SequencesPaused": lambda scope: _sequences(scope, paused=_stays("2")),
    "QueueGrowing": lambda scope: _sequences(scope, waiting=_rises(2), max=_stays("16")),
    "DecodeStuck": lambda scope: {
        scope.series("tokenslo_ready", Matcher("layer", "=", "decode")): _stays("0")
    },
    "ClientDisconnectsAtTimeout": _disconnects,
    "RetryStorm": lambda scope: {
        scope.series(SIGNALS["suspected_retries"].metric): _rises(300),
        **_requests(scope),
    },
    "SlowClients": lambda scope: {
        scope.series(SIGNALS["client_backpressure"].metric): _rises(300),
        scope.gauge("live_streams"): _stays("20"),
    },
    "WastedWork": _wasted,
    "EngineStatsLost": lambda scope: {
        _here(scope.series("tokenslo_source_lost_records_total")): _rises(1),
        _here(scope.series("tokenslo_model_info")): _stays("1"),
    },
    "ExporterSourceDown": lambda scope: {
        _here(scope.series("tokenslo_source_up")): _stays("0"),
        _here(scope.series("tokenslo_model_info")): _stays("1"),
    },
    # The rules of the objectives record it.
    "SignalUnavailable": lambda scope: {
        vector(UNAVAILABLE, {"service": scope.service, "signal": scope.needed[0]}): _stays("1")
    },
    "ModelNotReady": lambda scope: {
        scope.series("tokenslo_ready", Matcher("layer", "=", "model")): _stays("0")
    },
    "GpuMemoryNearFull": _memory,
    "BadVersion": _requests,
}
"""By cause: the series while its condition holds, one sample per minute."""

_APART = ("KvCachePressure", "SequencesPaused", "QueueGrowing")
# These read the same gauges of one engine, so each has a scenario of its own.
_SCENARIOS = (*((name,) for name in _APART), tuple(name for name in _HAPPENS if name not in _APART))
