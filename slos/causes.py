"""What goes wrong in LLM serving, as conditions on signals: alerts that say why, not that.

A cause alert explains a symptom, which is an objective that burns.  Pages name the causes that fire
with them.  Most causes notify with low urgency by themselves; a hang pages.

Every condition has no element, rather than a NaN, where nothing happens or nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from promql.expr import Binary, Expr, Matcher, aggregate, call, equal, ignoring, number, on, vector
from slos.indicators import FAILED, INDICATORS
from slos.queries import INSTANCE, Scope
from slos.signals import MODEL_LABELS, SIGNALS

WINDOW = "10m"
"""The window of rates: causes build up over minutes, and five would make every burst one."""
_WINDOW_SECONDS = 600
_LOOKS = "5m"
"""Over which gauges are read: a scrape sees one iteration of thousands, and `for` forgets all at
the first look that differs."""
_SPIKE_WINDOW = "30m"
_LEAST = number(10)
"""Events below which a share says nothing."""
_LEAST_OF_MEAN = number(100)
"""Events below which a mean says nothing: one long prompt is most of it."""
_FEW_STREAMS = number(5)
_EACH = (INSTANCE,)
_PERCENT = "{{ $value | humanizePercentage }}"
_DURATION = "{{ $value | humanizeDuration }}"
_NUMBER = "{{ $value | humanize }}"
_PER_MINUTE = number(60)

# Gauges of one engine that differ in this label, or lack it.
_STATES = ignoring("state")


@dataclass(frozen=True, slots=True)
class Condition:
    """When a cause holds; ``labels`` tell several conditions of one cause apart."""

    expr: Expr
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CauseAlert:
    """A cause and how it is recognised.

    ``runbook`` is the key of the cause in the runbooks; ``symptoms`` are the indicators whose
    objectives it explains.  ``why`` is why this condition means that cause, and ``value`` what the
    alert's value is, with a template for it.  ``tier`` is how urgent it is.
    """

    name: str
    runbook: str
    summary: str
    why: str
    symptoms: tuple[str, ...]
    lasting: str
    conditions: Callable[[Scope], tuple[Condition, ...]]
    value: str = ""
    tier: str = "cause"


def conditions(alert: CauseAlert, selector: Mapping[str, str]) -> tuple[Condition, ...]:
    """Return when a cause holds on the servers that ``selector`` chooses."""
    return alert.conditions(scope_of(selector))


def scope_of(selector: Mapping[str, str]) -> Scope:
    """Return where to look: causes are about servers, whichever tenant an SLO is about.

    Few signals are counted by tenant, and a ratio must not mix those with others.
    """
    return Scope({name: value for name, value in selector.items() if name != "tenant"}, WINDOW)


def cause_labels(selector: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels that cause alerts have of the servers that ``selector`` chooses."""
    return scope_of(selector).selector


def _one(expr: Callable[[Scope], Expr]) -> Callable[[Scope], tuple[Condition, ...]]:
    return lambda scope: (Condition(expr(scope), {}),)


def _kv_pressure(scope: Scope) -> Expr:
    """Without eviction room is kept for whole answers, so the last blocks are never in use."""
    active, waiting, decoding, utilization = (
        call("avg_over_time", _over(scope, key, _LOOKS))
        for key in ("sequences_active", "sequences_waiting", "sequences_decoding", "kv_utilization")
    )
    full = utilization.compare(">", number(Decimal("0.8")))
    held_up = full.and_(waiting.compare(">=", number(1)), _STATES)
    # Where those that wait are all among the active ones, the rest runs; where some are still in
    # front of the engine, nearly all that run are decoding.
    scheduled = Binary(active, "-", waiting, matching=_STATES)
    nearly = scope.gauge("sequences_max") * number(Decimal("0.9"))
    for running, matching in ((scheduled, None), (decoding, _STATES)):
        held_up = held_up.unless(Binary(running, ">=", nearly, matching=matching))
    return held_up.unless(_preempting(scope), _STATES)


def _preempting(scope: Scope) -> Expr:
    paused = call("rate", scope.series(SIGNALS["preemptions"].metric, window=WINDOW))
    often = (paused * _PER_MINUTE).compare(">", number(1))
    # Some engines tell how many were paused in this very iteration, which is 0 in most.
    seen = call("max_over_time", _over(scope, "sequences_paused", _LOOKS))
    return Binary(often, "or", seen.compare(">", number(0)), matching=_STATES)


def _queue_growing(scope: Scope) -> Expr:
    waiting, most = scope.gauge("sequences_waiting"), scope.gauge("sequences_max")
    long = Binary(waiting, ">", most * number(Decimal("0.25")), matching=_STATES)
    more = call("deriv", _over(scope, "sequences_waiting")) * _PER_MINUTE
    return long.and_(more.compare(">", number(1)), _STATES)


def _stuck(scope: Scope) -> Expr:
    # Not the gauges: the sidecar withdraws what stands still while sequences are active.
    return scope.series("tokenslo_ready", *equal({"layer": "decode"})).compare("==", number(0))


def _age_spikes(scope: Scope) -> Expr:
    """Find the time-out that cuts off at least the upper half of all disconnects.

    Each usual time-out has a bucket of its own, which is narrow; so the median and the 90th
    percentile are close together only if both are in it.
    """
    metric = SIGNALS["disconnect_age"].metric
    ages = call("increase", scope.series(f"{metric}_bucket", window=_SPIKE_WINDOW))
    every = call("increase", scope.series(f"{metric}_count", window=_SPIKE_WINDOW))
    middle, late = (
        call("histogram_quantile", number(Decimal(q)), aggregate("sum", ages, (INSTANCE, "le")))
        for q in ("0.5", "0.9")
    )
    close = middle.compare(">", late * number(Decimal("0.95"))).compare(">=", number(5))
    return close.and_(aggregate("sum", every, (INSTANCE,)).compare(">=", _LEAST))


def _share(part: Expr, whole: Expr, above: str, events: Expr) -> Expr:
    """Say that ``part`` is more than a share of ``whole``, of enough events per second."""
    many = (events * number(_WINDOW_SECONDS)).compare(">=", _LEAST)
    return (part / whole).compare(">", number(Decimal(above))).and_(many)


def _retry_storm(scope: Scope) -> Expr:
    retries = scope.rate(SIGNALS["suspected_retries"].metric, by=_EACH)
    return _share(retries, scope.requests(by=_EACH), "0.1", retries)


def _slow_clients(scope: Scope) -> Expr:
    waited = scope.rate(SIGNALS["client_backpressure"].metric, by=_EACH)
    live = aggregate("sum", call("avg_over_time", _over(scope, "live_streams")), _EACH)
    several = live.compare(">=", _FEW_STREAMS)
    return (waited / several).compare(">", number(Decimal("0.1")))


def _wasted(scope: Scope) -> Expr:
    wasted = scope.rate(SIGNALS["wasted_tokens"].metric, by=_EACH)
    output = SIGNALS["output_tokens"]
    sent = scope.rate(output.metric, *equal(output.fixed), by=_EACH)
    left = scope.rate(SIGNALS["disconnects"].metric, by=_EACH)
    return _share(wasted, wasted + sent, "0.1", left)


def _over(scope: Scope, key: str, window: str = WINDOW) -> Expr:
    return replace(scope.gauge(key), window=window)


def _records_lost(scope: Scope) -> Expr:
    lost = scope.series("tokenslo_source_lost_records_total", window=WINDOW)
    return _of_model(scope, call("increase", lost).compare(">", number(0)))


def _source_down(scope: Scope) -> Expr:
    return _of_model(scope, scope.series("tokenslo_source_up").compare("==", number(0)))


def _of_model(scope: Scope, expr: Expr) -> Expr:
    """Keep the instances that serve the model: the exporter's own metrics have no such label."""
    if not any(label in scope.selector for label in MODEL_LABELS):
        return expr
    # A sidecar that cannot read its source still knows, for an hour, which models it has.
    return expr.and_(scope.series("tokenslo_model_info"), on(INSTANCE))


def _not_ready(scope: Scope) -> Expr:
    return scope.series("tokenslo_ready", *equal({"layer": "model"})).compare("==", number(0))


def _memory(scope: Scope) -> Expr:
    # Triton's own metrics, which Prometheus scrapes beside the sidecar: one per GPU.
    used, whole = (
        vector(f"nv_gpu_memory_{part}_bytes", scope.foreign()) for part in ("used", "total")
    )
    full = (used / whole).compare(">", number(Decimal("0.98")))
    chosen = [label for label in MODEL_LABELS if label in scope.selector]
    if not chosen:
        return full
    # Triton has no model on its GPUs' metrics; these tell on which servers the model is.
    serving = (*scope.foreign(), *(Matcher(each, "=", scope.selector[each]) for each in chosen))
    there = vector("nv_inference_pending_request_count", serving)
    return full.and_(there, on(INSTANCE))


def _bad_rollout(scope: Scope) -> tuple[Condition, ...]:
    if "version" in scope.selector:  # then there is no other to compare it with
        return ()
    by = ("version",)
    ok, bad, all_ = (
        scope.requests(*outcomes, by=by) for outcomes in (("ok",), FAILED, ("ok", *FAILED))
    )
    # By what succeeds, as a version that never failed has no series of failures.
    best = number(1) - aggregate("max", ok / all_)
    far = best * number(3) + number(Decimal("0.01"))
    worse = Binary(bad / all_, ">", far, matching=on(group_left=()))
    enough = (bad * number(_WINDOW_SECONDS)).compare(">=", _LEAST)
    return (Condition(worse.and_(enough), {}),)


def _slow_version(scope: Scope) -> tuple[Condition, ...]:
    if "version" in scope.selector:
        return ()

    def slow(metric: str) -> Expr:
        spent, many = (scope.rate(f"{metric}_{of}", by=("version",)) for of in ("sum", "count"))
        enough = (many * number(_WINDOW_SECONDS)).compare(">=", _LEAST_OF_MEAN)
        mean = (spent / many).and_(enough)
        best = aggregate("min", mean)
        return Binary(mean, ">", best * number(2), matching=on(group_left=()))

    return tuple(Condition(slow(SIGNALS[key].metric), {"signal": key}) for key in ("ttft", "itl"))


CAUSE_ALERTS: tuple[CauseAlert, ...] = (
    CauseAlert(
        "KvCachePressure",
        "kv_pressure",
        "sequences wait for room in the KV cache",
        "The batch has room and the KV cache has little. TensorRT-LLM's default policy "
        "(GUARANTEED_NO_EVICT) starts a sequence only when there is room for all of its answer: "
        "so it makes others wait, and pauses nobody.",
        ("ttft", "e2e", "queue", "goodput", "kv_headroom"),
        "10m",
        _one(_kv_pressure),
        value=f"KV cache in use: {_PERCENT}",
    ),
    CauseAlert(
        "SequencesPaused",
        "kv_pressure",
        "sequences are paused to make room in the KV cache",
        "With the policy MAX_UTILIZATION a full cache pauses sequences that have begun, and so "
        "does vLLM: their streams stall, and what they had is computed again.",
        ("itl", "tpot", "e2e", "max_gap", "goodput", "kv_headroom"),
        "10m",
        _one(_preempting),
        value=f"Paused, at once or in a minute: {_NUMBER}",
    ),
    CauseAlert(
        "QueueGrowing",
        "overload",
        "more requests come than the engine takes in",
        "As many sequences wait as a quarter of what the engine takes at once, and there is one "
        "more of them each minute: the time to first token grows without limit.",
        ("ttft", "e2e", "queue", "goodput", "sequence_headroom"),
        "10m",
        _one(_queue_growing),
        value=f"Requests waiting: {_NUMBER}",
    ),
    CauseAlert(
        "DecodeStuck",
        "stuck_decode",
        "sequences are active and no token comes",
        "An engine with work iterates many times a second, and the sidecar has seen neither a "
        "token nor an iteration nor a finished request. Health endpoints go on saying 200.",
        ("ttft", "itl", "e2e", "max_gap", "availability", "stream_completion", "goodput"),
        "1m",
        _one(_stuck),
        tier="page",
    ),
    CauseAlert(
        "ClientDisconnectsAtTimeout",
        "gateway_timeout",
        "clients disconnect at one age, which is a time-out",
        "People disconnect at any time; a time-out of a gateway or a client library cuts off at "
        "one. At least half of all disconnects, and the latest, are within 5% of this age.",
        ("ttft", "disconnects", "goodput"),
        "5m",
        _one(_age_spikes),
        value=f"Time-out: {_DURATION}",
    ),
    CauseAlert(
        "RetryStorm",
        "retry_storm",
        "requests come again that failed or were left shortly before",
        "More than a tenth of all requests are retries. They add to the load that made the first "
        "attempt fail, and keep it up when the reason for that has gone.",
        ("ttft", "queue", "availability", "goodput", "sequence_headroom"),
        "5m",
        _one(_retry_storm),
        value=f"Retries: {_PERCENT} of requests",
    ),
    CauseAlert(
        "SlowClients",
        "slow_clients",
        "clients read slowly",
        "Streams wait for their readers a tenth of the time, so gaps between tokens are those of "
        "clients and networks, not of the server.",
        ("itl", "tpot", "e2e", "max_gap", "goodput"),
        "10m",
        _one(_slow_clients),
        value=f"Streams wait {_PERCENT} of the time",
    ),
    CauseAlert(
        "WastedWork",
        "wasted_work",
        "the server works for clients that have disconnected",
        "More than a tenth of all tokens are sent after their client has disconnected, while other "
        "requests wait for the GPU.",
        ("ttft", "queue", "disconnects", "kv_headroom", "sequence_headroom"),
        "10m",
        _one(_wasted),
        value=f"Wasted: {_PERCENT} of output tokens",
    ),
    CauseAlert(
        "EngineStatsLost",
        "records_lost",
        "records of the engine are lost before they are read",
        "A second reader takes them, or the queue they wait in is too short: counts and estimates "
        "from them are too low.",
        ("itl", "kv_headroom", "sequence_headroom"),
        "15m",
        _one(_records_lost),
        value=f"Records lost in 10m: {_NUMBER}",
    ),
    CauseAlert(
        "ExporterSourceDown",
        "server_gone",
        "the exporter cannot scrape a source",
        "Signals of this source are withdrawn rather than served stale; objectives that need them "
        "cannot be measured.",
        tuple(INDICATORS),
        "5m",
        _one(_source_down),
    ),
    CauseAlert(
        "ModelNotReady",
        "server_gone",
        "a model is not ready to serve",
        "The server runs and says that this model or version is not loaded.",
        ("ttft", "availability", "goodput"),
        "5m",
        _one(_not_ready),
    ),
    CauseAlert(
        "GpuMemoryNearFull",
        "engine_death",
        "the memory of a GPU is nearly full",
        "Engines take most of it when they start. The last 2% are for activations and other "
        "processes; without them the engine dies in the middle of its streams.",
        ("availability", "stream_completion", "goodput"),
        "15m",
        _one(_memory),
        value=f"Memory in use: {_PERCENT}",
    ),
    CauseAlert(
        "BadVersion",
        "bad_rollout",
        "one version fails more often than the best one",
        "It fails three times as often, and more than a percent of its requests in addition. The "
        "versions share one kind of traffic, so what differs is the version.",
        ("availability", "stream_completion", "goodput"),
        "5m",
        _bad_rollout,
        value=f"Failing: {_PERCENT} of requests of version {{{{ $labels.version }}}}",
    ),
    CauseAlert(
        "SlowVersion",
        "bad_rollout",
        "one version is slower than the best one",
        "Its mean time to the first token, or between tokens, is more than twice that of the best "
        "version, which the label signal tells. The versions share one kind of traffic, so what "
        "differs is the version; often no request fails.",
        ("ttft", "itl", "tpot", "e2e", "max_gap", "goodput"),
        "5m",
        _slow_version,
        value=f"Mean {{{{ $labels.signal }}}} of version {{{{ $labels.version }}}}: {_DURATION}",
    ),
)
"""In the order of the generated file."""
