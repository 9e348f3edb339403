"""PromQL of diagnosis checks of the servers and models of a service, without an objective.

A comparison with the day before has no element where there is nothing to compare with: a service
that is younger than a day, or that was idle at this time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal

from promql.expr import Binary, Expr, Matcher, Vector, aggregate, call, equal, number, on, vector
from slos.cause_conditions import BATCH
from slos.indicators import among
from slos.outcomes import FAILURES, OUTCOMES
from slos.queries import INSTANCE, Scope
from slos.signals import MODEL_LABELS, SIGNALS

BEFORE = "1d"
"""The offset of comparisons: the same time on the day before."""
RECENT = "15m"
"""How long a start counts as recent."""

Query = Callable[[Scope], Expr]
_SMOOTH = "5m"
"""The window of gauges, which sample one iteration of thousands."""
_LEAST_OF_LENGTH = number(10)
_HALF = Decimal("0.5")
_EACH = (INSTANCE,)
_VERSIONS = ("version", INSTANCE)
_REFUSED = ("shed", "quota", "draining", "invalid")
_PROCESSED = tuple(each for each in OUTCOMES if each not in _REFUSED)


def before(scope: Scope) -> Scope:
    """Return the same servers at this time yesterday."""
    return replace(scope, offset=BEFORE)


def ratio(query: Query) -> Query:
    """Return a query over its value of the day before, which must be above zero."""
    return lambda scope: query(scope) / query(before(scope)).compare(">", number(0))


def increase(query: Query) -> Query:
    """Return a query less its value of the day before."""
    return lambda scope: query(scope) - query(before(scope))


# Readiness


def models_ready(scope: Scope) -> Expr:
    """Return whether each instance serves each model in some version, 1 or 0.

    A version that was unloaded on purpose is not ready either.
    """
    return aggregate("max", _ready(scope, "model"), (INSTANCE, "model"))


def decoding(scope: Scope) -> Expr:
    """Return whether decoding progresses in every engine, 1 or 0."""
    return aggregate("min", _ready(scope, "decode"), (INSTANCE, *MODEL_LABELS))


def _ready(scope: Scope, layer: str) -> Vector:
    return scope.series("tokenslo_ready", *equal({"layer": layer}))


def time_ready(scope: Scope) -> Expr:
    """Return the share of recent scrapes in which a server and its models were ready.

    Models and servers that are not ready now are left out.
    """
    scrapes = call("count_over_time", scope.series("tokenslo_build_info", window=RECENT))
    # The layer of the server has no model, and no series while the server does not respond.
    server = vector("tokenslo_ready", (*scope.foreign(), *equal({"layer": "server"})))
    layers = (
        call("sum_over_time", replace(layer, window=RECENT)).and_(layer.compare("==", number(1)))
        for layer in (_ready(scope, "model"), server)
    )
    models, servers = (
        Binary(ready, "/", scrapes, matching=on(INSTANCE, group_left=())) for ready in layers
    )
    return aggregate("min", models.or_(servers), _EACH)


def probes(scope: Scope) -> Expr:
    """Return whether the last probe of each model succeeded, 1 or 0."""
    return aggregate("min", scope.series("tokenslo_probe_success"), (INSTANCE, "model"))


# Engine


def by_instance(signal: str) -> Query:
    """Return the average of a gauge, of the fullest model of each instance."""
    return lambda scope: aggregate("max", _average(scope, signal), _EACH)


def _average(scope: Scope, signal: str) -> Expr:
    return call("avg_over_time", replace(scope.gauge(signal), window=_SMOOTH))


def paused(scope: Scope) -> Expr:
    """Return the most sequences that each instance has paused at once."""
    most = call("max_over_time", replace(scope.gauge("sequences_paused"), window=_SMOOTH))
    return aggregate("max", most, _EACH)


def running_share(scope: Scope) -> Expr:
    """Return the share of the batch that runs, of the fullest model of each instance."""
    return aggregate("max", BATCH.expr(scope), _EACH)


def waiting_with_free_slots(scope: Scope) -> Expr:
    """Return the waiting sequences of instances whose batch is not full, 0 where it is."""
    free = Binary(running_share(scope), "<", number(Decimal("0.9")), bool_=True)
    return Binary(by_instance("sequences_waiting")(scope), "*", free, matching=on(INSTANCE))


def waiting_beside_idle(scope: Scope) -> Expr:
    """Return the longest queue of an instance while another is half as busy, 0 otherwise."""
    active = by_instance("sequences_active")(scope)
    uneven = aggregate("min", active) / aggregate("max", active)
    waiting = aggregate("max", _average(scope, "sequences_waiting"))
    return waiting * Binary(uneven, "<", number(_HALF), bool_=True)


def memory_growth(scope: Scope) -> Expr:
    """Return each instance's memory, over the minimum of the last day."""
    now = scope.gauge("memory_gpu")
    past = call("min_over_time", replace(now, window=BEFORE))
    return aggregate("max", now / past, _EACH)


# Work


def _enough(scope: Scope, *outcomes: str) -> Expr:
    """Return requests per second, if there were enough in the window for a mean length."""
    ended = scope.series(
        SIGNALS["requests"].metric, among("outcome", outcomes), window=scope.window
    )
    many = aggregate("sum", call("increase", ended)).compare(">=", _LEAST_OF_LENGTH)
    return scope.requests(*outcomes).and_(many)


def prompt_length(scope: Scope) -> Expr:
    """Return the mean length of prompts, in tokens; also those of broken streams count."""
    return scope.tokens("input") / _enough(scope, *_PROCESSED)


def response_length(scope: Scope) -> Expr:
    """Return the mean length of complete responses, in tokens.

    Only a tap counts partial responses; without one they count as complete.
    """
    sent = scope.tokens("output")
    complete = sent - scope.rate(SIGNALS["partial_tokens"].metric)
    return complete.or_(sent) / _enough(scope, "ok")


def per_request(signal: str) -> Query:
    """Return a counter's increase per request."""
    return lambda scope: scope.rate(SIGNALS[signal].metric) / scope.requests()


def output(scope: Scope) -> Expr:
    """Return output tokens per second."""
    return scope.tokens("output")


def arrivals(scope: Scope) -> Expr:
    """Return requests per second."""
    return scope.requests()


def mix_by_version(scope: Scope) -> Expr:
    """Return the longest mean prompt of a version on an instance over the shortest.

    Of the requests that succeed: servers report few lengths of the others.
    """
    enough = scope.requests("ok", by=_VERSIONS).compare(">", number(Decimal("0.05")))
    mean = Binary(scope.tokens("input", _VERSIONS), "/", enough, matching=on(*_VERSIONS))
    return aggregate("max", mean) / aggregate("min", mean)


# Latency


def pace(scope: Scope) -> Expr:
    """Return the mean time per output token, or else the mean gap, in seconds."""
    return scope.mean("tpot").or_(scope.mean("itl"))


def prefill_per_token(scope: Scope) -> Expr:
    """Return the mean prefill time per prompt token.

    Without this signal it is the time to first token, unless sequences wait in the engine.
    """
    waiting = aggregate("max", _average(scope, "sequences_waiting")).compare(">=", number(1))
    first_token = scope.mean("ttft").unless(waiting)
    return scope.mean("prefill").or_(first_token) / prompt_length(scope)


def queue_share(scope: Scope) -> Expr:
    """Return the mean queue time over the mean time to first token."""
    return scope.mean("queue") / scope.mean("ttft")


def throughput_while_slow(scope: Scope) -> Expr:
    """Return output tokens per second over yesterday's while token pace is bad, 0 otherwise."""
    slow = Binary(ratio(pace)(scope), ">=", number(Decimal("1.5")), bool_=True)
    return ratio(output)(scope) * slow


def quantile(q: str, signal: str) -> Query:
    """Return a quantile of a latency, in seconds."""
    return lambda scope: scope.quantile(Decimal(q), signal)


def added_stage_seconds(scope: Scope) -> Expr:
    """Return seconds per request that each stage of an ensemble takes more than yesterday."""
    # Triton's own metrics, which Prometheus scrapes in addition to the sidecar.
    return increase(_stage_seconds)(scope)


def _stage_seconds(scope: Scope) -> Expr:
    """Return the seconds per request in each model that is neither the engine nor an ensemble."""
    others = (
        *scope.foreign(),
        *(Matcher("model", "!=", name) for name in _selected(scope, "model")),
    )
    ranged = vector("nv_inference_request_duration_us", others, scope.window, scope.offset)
    spent: Expr = call("rate", ranged)
    if selected := _selected(scope, "model"):
        serving = (*scope.foreign(), *equal({"model": selected[0]}))
        server = vector("nv_inference_pending_request_count", serving, offset=scope.offset)
        spent = spent.and_(server, on(INSTANCE))
    total = aggregate("sum", spent, ("model",))
    for label in ({"backend": "ensemble"}, {"decoupled": "true"}):
        whole = vector("tokenslo_model_info", (*scope.foreign(), *equal(label)))
        total = total.unless(whole, on("model"))
    return total / number(1_000_000) / call("scalar", scope.requests())


def _selected(scope: Scope, label: str) -> list[str]:
    return [scope.selector[label]] if label in scope.selector else []


# Outcomes


def failures(*outcomes: str) -> Query:
    """Return the share of requests with these outcomes, by the server's reason; 0 without any."""

    def query(scope: Scope) -> Expr:
        metric = SIGNALS["request_failures"].metric
        failed = scope.rate(metric, among("outcome", outcomes), by=("outcome", "reason"))
        # A reason has no series before its first failure.
        none = scope.requests() * number(0)
        return (failed / call("scalar", scope.requests())).or_(none)

    return query


def outcome_share(outcome: str) -> Query:
    """Return the share of requests with an outcome."""
    return lambda scope: scope.requests(outcome) / scope.requests()


def died_before_first_token(scope: Scope) -> Expr:
    """Return the share of requests that failed before their first token, by outcome."""
    metric = SIGNALS["requests_without_first_token"].metric
    failed = scope.rate(metric, among("outcome", FAILURES), by=("outcome",))
    return failed / call("scalar", scope.requests())


def mid_stream_failures(scope: Scope) -> Expr:
    """Return the share of streams that failed mid-stream, by outcome."""
    metric = SIGNALS["streams"].metric
    cut = (Matcher("phase", "=", "mid_stream"), among("outcome", FAILURES))
    return scope.rate(metric, *cut, by=("outcome",)) / call("scalar", scope.rate(metric))


# Clients


def disconnects(*matchers: Matcher) -> Query:
    """Return the share of requests whose client disconnects."""
    metric = SIGNALS["disconnects"].metric
    return lambda scope: scope.rate(metric, *matchers) / scope.requests()


EARLY = Matcher("phase", "=", "before_first_token")


def disconnect_age_ratio(scope: Scope) -> Expr:
    """Return the median over the 90th percentile of the age at disconnect, 0 if there are few.

    Each usual timeout has a narrow bucket of its own, so the two are close together only if a
    timeout cuts off most of these streams.
    """
    middle, late = (scope.quantile(Decimal(q), "disconnect_age") for q in ("0.5", "0.9"))
    often = scope.rate(SIGNALS["disconnects"].metric)
    few = number(Decimal("0.03"))  # ten in five minutes
    steep = (middle / late).and_(middle.compare(">=", number(5))).and_(often.compare(">=", few))
    return steep.or_(often * number(0))


def backpressure(scope: Scope) -> Expr:
    """Return the share of live streams whose clients do not read."""
    blocked = scope.rate(SIGNALS["client_backpressure"].metric)
    live = aggregate("sum", _average(scope, "live_streams"))
    return blocked / live.compare(">", number(0))


def wasted_tokens(scope: Scope) -> Expr:
    """Return the share of tokens sent after a client disconnect."""
    wasted = scope.rate(SIGNALS["wasted_tokens"].metric)
    return wasted / (wasted + scope.tokens("output"))


# Measurement


def scrape_errors(scope: Scope) -> Expr:
    """Return failed scrapes per second by source and kind, and 0 for every source."""
    errors = scope.rate("tokenslo_source_errors_total", by=("source", "kind"))
    # A kind has no series before its first error.
    every = aggregate("count", scope.series("tokenslo_source_up"), ("source",))
    return errors.or_(every * number(0))


def lost_records(scope: Scope) -> Expr:
    """Return lost records per second by source."""
    return scope.rate("tokenslo_source_lost_records_total", by=("source",))


def least(metric: str, by: Iterable[str]) -> Query:
    """Return the minimum of one of the sidecar's own gauges."""
    labels = tuple(by)
    return lambda scope: aggregate("min", scope.series(metric), labels)


def sidecars(scope: Scope) -> Expr:
    """Return the number of scraped sidecars, 0 without any."""
    return aggregate("count", scope.series("tokenslo_build_info")).or_(call("vector", number(0)))
