"""The scaling policy of a service: signals, limits and times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import ceil

from autoscaling import queries
from promql.expr import Expr, decimal_text
from slos.durations import format_duration
from slos.model import Autoscaling, Objective, Service
from slos.plan import Plan
from slos.queries import Scope

POLLING_SECONDS = 15
"""How often the signals are read."""
FAILURES = 3
"""Failed queries in a row before the fallback."""
LEAST_STABILIZATION, MOST_STABILIZATION = 300, 3600
"""Seconds; the most that Kubernetes accepts."""
TEARDOWN_SECONDS = 60
"""Added to the longest stream for the time that a server needs to stop."""
DEFAULT_STREAM = Decimal(600)
GOODPUT_WINDOW = "2m"
WAKE = "wake"
"""The name of the signal that starts the first replica."""


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """The largest change of replicas within ``seconds``: the larger of a number and a share."""

    pods: int
    percent: int
    seconds: int


UP = ReplicaStep(4, 100, 60)
DOWN = ReplicaStep(1, 10, 120)


@dataclass(frozen=True, slots=True)
class StreamDuration:
    """How long a replica may serve a stream after it was chosen to stop, and the source of that."""

    seconds: Decimal
    source: str

    def __str__(self) -> str:
        return f"{format_duration(self.seconds)}, {self.source}"


@dataclass(frozen=True, slots=True)
class ScalingSignal:
    """A signal and the number of replicas that it demands."""

    name: str
    about: str
    demand: Expr


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """What a service is scaled on; the largest demand of all ``signals`` wins."""

    service: Service
    autoscaling: Autoscaling
    signals: tuple[ScalingSignal, ...]
    stream: StreamDuration

    @property
    def stabilization_seconds(self) -> int:
        """How long the demand must be lower before a replica stops."""
        return min(max(self._stream_seconds, LEAST_STABILIZATION), MOST_STABILIZATION)

    @property
    def grace_seconds(self) -> int:
        """The termination grace period that lets open streams end."""
        return self._stream_seconds + TEARDOWN_SECONDS

    @property
    def _stream_seconds(self) -> int:
        return ceil(self.stream.seconds)

    @property
    def load_signals(self) -> tuple[ScalingSignal, ...]:
        """The signals that scale a service with replicas."""
        return tuple(signal for signal in self.signals if signal.name != WAKE)


def policy_of(plan: Plan, autoscaling: Autoscaling, namespace: str = "") -> ScalingPolicy:
    """Return the policy of a service."""
    service = plan.service
    stream = stream_duration(service.objectives, autoscaling.stream_p99)
    signals = tuple(_signals(service, autoscaling, namespace))
    return ScalingPolicy(service, autoscaling, signals, stream)


def stream_duration(objectives: tuple[Objective, ...], measured: Decimal | None) -> StreamDuration:
    """Return the measured duration, else the longest of the objectives, else a default."""
    if measured is not None:
        return StreamDuration(measured, "the measured 99th percentile (stream_p99)")
    limits = [each.threshold for each in objectives if each.indicator == "e2e"]
    limits += [each.clauses.get("e2e") for each in objectives]
    if longest := max((limit for limit in limits if limit is not None), default=None):
        return StreamDuration(longest, "the longest stream of the objectives (e2e), not measured")
    return StreamDuration(DEFAULT_STREAM, "a default, as stream_p99 and e2e objectives are missing")


def goodput_objective(service: Service, autoscaling: Autoscaling) -> Objective | None:
    """Return the objective to scale on: the named one, else the first."""
    found = (each for each in service.objectives if each.indicator == "goodput")
    wanted = autoscaling.goodput
    return next((each for each in found if wanted in ("", each.name)), None)


def _signals(service: Service, autoscaling: Autoscaling, namespace: str) -> Iterator[ScalingSignal]:
    scope = Scope(service.selector, GOODPUT_WINDOW)

    def signal(name: str, about: str, demand: Expr) -> ScalingSignal:
        if autoscaling.min_replicas == 0:
            stopped = queries.no_replicas(scope, autoscaling.workload, namespace)
            demand = demand.or_(stopped)
        return ScalingSignal(name, about, demand)

    waiting, tokens = autoscaling.waiting, autoscaling.tokens_in_flight
    yield signal(
        "waiting",
        f"one replica more for every {waiting} waiting sequences",
        queries.waiting_demand(scope, waiting),
    )
    yield signal(
        "kv-cache",
        f"KV cache of all replicas, {decimal_text(autoscaling.kv_cache * 100)}% of one each",
        queries.kv_cache_demand(scope, autoscaling.kv_cache),
    )
    if tokens:
        about = f"tokens in the KV cache of all replicas, {tokens:,} each"
        yield signal("tokens-in-flight", about, queries.tokens_demand(scope, tokens))
    if objective := goodput_objective(service, autoscaling):
        least = objective.alerting.of(service.alerting).min_bad_events
        sheds = "shed" in service.spending(objective)
        spent = "latency and load shedding" if sheds else "latency"
        yield signal(
            "goodput",
            f"burn rate of {objective.name} by {spent}, times the replicas, at most twice them",
            queries.goodput_demand(scope, objective, service, least),
        )
    if autoscaling.wake:
        about = "the first replica, while requests wait"
        yield ScalingSignal(WAKE, about, queries.wake_demand(autoscaling.wake))
