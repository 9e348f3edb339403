"""PromQL conditions of cause alerts.

Without events or data a condition has no element, rather than a NaN.  Expressions that a condition
reads more than once are recorded before it, once per model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Vector,
    aggregate,
    call,
    equal,
    ignoring,
    number,
    on,
    vector,
)
from slos.indicators import among
from slos.names import UNAVAILABLE
from slos.outcomes import FAILURES as FAILED
from slos.queries import INSTANCE, Scope
from slos.signals import MODEL_LABELS, SIGNALS

WINDOW = "10m"
"""The window of rates: causes build up over minutes, and in 5m every burst would be one."""
_GAUGE_WINDOW = "5m"
"""The window of gauges: a scrape samples one iteration of thousands, and one sample that differs
resets the `for` of an alert."""
_SPIKE_WINDOW = "30m"
_LEAST = number(10)
"""The least number of events for a meaningful ratio."""
_LEAST_OF_MEAN = number(100)
"""The least number of events for a meaningful mean, which one long prompt could dominate."""
_FEW_STREAMS = number(5)
_EACH = (INSTANCE,)
_BY_VERSION = ("version",)
_BEST = on(group_left=())
_PER_MINUTE = number(60)

# Gauges of one engine that differ in this label, or lack it.
_STATES = ignoring("state")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a cause; ``labels`` distinguish several conditions of one cause."""

    expr: Expr
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that the rules record for the conditions that read it."""

    name: str
    expr: Callable[[Scope], Expr]

    def read(self, scope: Scope, *matchers: Matcher) -> Vector:
        """Select the series of these servers."""
        return vector(self.name, (*equal(scope.selector), *matchers))


Conditions = Callable[[Scope], tuple[Condition, ...]]


def one(expr: Callable[[Scope], Expr]) -> Conditions:
    """Return the conditions of a cause that has a single one."""
    return lambda scope: (Condition(expr(scope), {}),)


def kv_pressure(scope: Scope) -> Expr:
    """Find engines whose cache is full and whose batch is not.

    Without eviction, blocks are reserved for whole responses, so the last ones are never in use.
    """
    utilization, waiting = (_average(scope, key) for key in ("kv_utilization", "sequences_waiting"))
    full = utilization.compare(">", number(Decimal("0.8")))
    held_up = full.and_(waiting.compare(">=", number(1)), _STATES)
    batch = BATCH.read(scope).compare(">=", number(Decimal("0.9")))
    return held_up.unless(batch).unless(PAUSED.read(scope), _STATES)


def _batch(scope: Scope) -> Expr:
    """Return the share of the batch that runs.

    If the active sequences include those that wait, the rest runs; if sequences wait in front of
    the engine, nearly all running ones are decoding.
    """
    active, waiting, decoding = (
        _average(scope, f"sequences_{state}") for state in ("active", "waiting", "decoding")
    )
    scheduled = Binary(active, "-", waiting, matching=_STATES)
    running = aggregate("max", scheduled.or_(decoding), ("state",), without=True)
    return running / scope.gauge("sequences_max")


def preempting(scope: Scope) -> Expr:
    """Find engines that pause sequences."""
    return PAUSED.read(scope).compare(">", number(0))


def _paused(scope: Scope) -> Expr:
    paused = call("rate", scope.series(SIGNALS["preemptions"].metric, window=WINDOW))
    often = (paused * _PER_MINUTE).compare(">", number(1))
    # Some engines report the sequences paused in this iteration, which are 0 in most.
    seen = call("max_over_time", _over(scope, "sequences_paused", _GAUGE_WINDOW))
    return Binary(often, "or", seen.compare(">", number(0)), matching=_STATES)


def queue_growing(scope: Scope) -> Expr:
    """Find engines with a long queue that gets longer."""
    waiting, most = scope.gauge("sequences_waiting"), scope.gauge("sequences_max")
    long = Binary(waiting, ">", most * number(Decimal("0.25")), matching=_STATES)
    more = call("deriv", _over(scope, "sequences_waiting")) * _PER_MINUTE
    return long.and_(more.compare(">", number(1)), _STATES)


def stuck(scope: Scope) -> Expr:
    """Find models whose readiness layer ``decode`` does not hold."""
    # Not the gauges: the sidecar withdraws unchanged gauges while sequences are active.
    return scope.series("tokenslo_ready", *equal({"layer": "decode"})).compare("==", number(0))


def age_spikes(scope: Scope) -> Expr:
    """Find the time-out that cuts off at least the upper half of all disconnects.

    Each usual time-out has a bucket of its own, which is narrow; so the median and the 90th
    percentile are close together only if both are in it.
    """
    middle, late = (
        call("histogram_quantile", number(Decimal(q)), AGES.read(scope)) for q in ("0.5", "0.9")
    )
    close = middle.compare(">", late * number(Decimal("0.95"))).compare(">=", number(5))
    every = AGES.read(scope, Matcher("le", "=", "+Inf")).compare(">=", _LEAST)
    return close.and_(every, on(INSTANCE))


def _ages(scope: Scope) -> Expr:
    metric = f"{SIGNALS['disconnect_age'].metric}_bucket"
    return _increase(scope, metric, by=(INSTANCE, "le"), window=_SPIKE_WINDOW)


def retry_storm(scope: Scope) -> Expr:
    """Find servers at which many requests are retries."""
    retries = _increase(scope, SIGNALS["suspected_retries"].metric, by=_EACH)
    share = retries.compare(">=", _LEAST) / _increase(scope, SIGNALS["requests"].metric, by=_EACH)
    return share.compare(">", number(Decimal("0.1")))


def slow_clients(scope: Scope) -> Expr:
    """Find servers at which several streams are blocked by their clients."""
    waited = scope.rate(SIGNALS["client_backpressure"].metric, by=_EACH)
    live = aggregate("sum", call("avg_over_time", _over(scope, "live_streams")), _EACH)
    several = live.compare(">=", _FEW_STREAMS)
    return (waited / several).compare(">", number(Decimal("0.1")))


def wasted_work(scope: Scope) -> Expr:
    """Find servers at which many tokens are sent after their client has disconnected."""
    many = WASTED.read(scope).compare(">", number(Decimal("0.1")))
    disconnects = _increase(scope, SIGNALS["disconnects"].metric, by=_EACH)
    return many.and_(disconnects.compare(">=", _LEAST), on(INSTANCE))


def _wasted(scope: Scope) -> Expr:
    wasted = scope.rate(SIGNALS["wasted_tokens"].metric, by=_EACH)
    output = SIGNALS["output_tokens"]
    sent = scope.rate(output.metric, *equal(output.fixed), by=_EACH)
    return number(1) / (number(1) + sent / wasted)  # wasted / (wasted + sent)


def _over(scope: Scope, key: str, window: str = WINDOW) -> Expr:
    return replace(scope.gauge(key), window=window)


def _average(scope: Scope, key: str) -> Expr:
    return call("avg_over_time", _over(scope, key, _GAUGE_WINDOW))


def _increase(
    scope: Scope, metric: str, *matchers: Matcher, by: tuple[str, ...], window: str = WINDOW
) -> Expr:
    return aggregate("sum", call("increase", scope.series(metric, *matchers, window=window)), by)


def records_lost(scope: Scope) -> Expr:
    """Find sources of which records were lost."""
    lost = scope.series("tokenslo_source_lost_records_total", window=WINDOW)
    return _of_model(scope, call("increase", lost).compare(">", number(0)))


def source_down(scope: Scope) -> Expr:
    """Find sources that the sidecar cannot scrape."""
    return _of_model(scope, scope.series("tokenslo_source_up").compare("==", number(0)))


def _of_model(scope: Scope, expr: Expr) -> Expr:
    """Keep the instances that serve the model: the sidecar's own metrics have no such label."""
    if not any(label in scope.selector for label in MODEL_LABELS):
        return expr
    # A sidecar whose source is down reports no model, so the models of the last hour count.
    models = scope.series("tokenslo_model_info", window="1h")
    return expr.and_(call("last_over_time", models), on(INSTANCE))


def signal_unavailable(scope: Scope) -> tuple[Condition, ...]:
    """Find signals that objectives need and sidecars report as unavailable."""
    if not scope.needed:
        return ()
    declared = vector(
        UNAVAILABLE, (*equal({"service": scope.service}), among("signal", scope.needed))
    )
    return (Condition(aggregate("max", declared, ("signal",)), {}),)


def not_ready(scope: Scope) -> Expr:
    """Find models that their server reports as not ready."""
    return scope.series("tokenslo_ready", *equal({"layer": "model"})).compare("==", number(0))


def memory(scope: Scope) -> Expr:
    """Find GPUs without free memory, on servers of the model."""
    # Triton's own metrics, which Prometheus scrapes in addition to the sidecar: one per GPU.
    used, whole = (
        vector(f"nv_gpu_memory_{part}_bytes", scope.foreign()) for part in ("used", "total")
    )
    full = (used / whole).compare(">", number(Decimal("0.98")))
    chosen = [label for label in MODEL_LABELS if label in scope.selector]
    if not chosen:
        return full
    # Triton has no model on its GPUs' metrics; these say on which servers the model is.
    serving = (*scope.foreign(), *(Matcher(each, "=", scope.selector[each]) for each in chosen))
    there = vector("nv_inference_pending_request_count", serving)
    return full.and_(there, on(INSTANCE))


def bad_version(scope: Scope) -> tuple[Condition, ...]:
    """Find versions that fail more often than the best one."""
    if "version" in scope.selector:  # no other version to compare with
        return ()
    ratio = FAILURES.read(scope)
    far = aggregate("min", ratio) * number(3) + number(Decimal("0.01"))
    failed = _increase(
        scope, SIGNALS["requests"].metric, among("outcome", FAILED), by=_BY_VERSION
    ).compare(">=", _LEAST)
    worse = Binary(ratio, ">", far, matching=_BEST).and_(failed, on("version"))
    return (Condition(worse, {}),)


def _failures(scope: Scope) -> Expr:
    # From successes, as a version that never failed may have no series of failures.
    ok, every = (
        scope.requests(*outcomes, by=_BY_VERSION) for outcomes in (("ok",), ("ok", *FAILED))
    )
    return number(1) - ok / every


def slow_version(scope: Scope) -> tuple[Condition, ...]:
    """Find versions whose mean latency is more than twice that of the best one."""
    if "version" in scope.selector:
        return ()

    def slow(mean: Vector) -> Expr:
        return Binary(mean, ">", aggregate("min", mean) * number(2), matching=_BEST)

    return tuple(
        Condition(slow(recording.read(scope)), {"signal": key}) for key, recording in MEANS.items()
    )


def _mean(metric: str) -> Callable[[Scope], Expr]:
    def mean(scope: Scope) -> Expr:
        spent, count = (
            _increase(scope, f"{metric}_{of}", by=_BY_VERSION) for of in ("sum", "count")
        )
        return spent / count.compare(">=", _LEAST_OF_MEAN)

    return mean


BATCH = Recording("model:llm_batch_utilization:ratio5m", _batch)
PAUSED = Recording("model:llm_sequences_paused:max5m", _paused)
AGES = Recording("instance:llm_disconnect_ages:increase30m", _ages)
WASTED = Recording("instance:llm_wasted_tokens:ratio10m", _wasted)
FAILURES = Recording("version:llm_request_failures:ratio10m", _failures)
MEANS: Mapping[str, Recording] = {
    key: Recording(f"version:{SIGNALS[key].metric}:mean10m", _mean(SIGNALS[key].metric))
    for key in ("ttft", "itl")
}
