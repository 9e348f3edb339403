"""Simulate autoscaling policies on one arrival trace: SLO attainment against replica-hours.

Run ``python -m bench.autoscaling [HOURS]`` from the checkout; README.md explains the table.  The
engine model is a simple one (see :class:`Replica`), so only the comparison counts.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from heapq import heappop, heappush
from math import ceil, pi, sin
from random import Random

from autoscaling.policy import DOWN, POLLING_SECONDS, UP, ReplicaStep, ScalingPolicy, policy_of
from autoscaling.queries import MOST_BURN
from autoscaling.queries import TOLERANCE as MOST_PER_REPLICA
from bench.arguments import positive_integer
from slos.model import Autoscaling, Objective, Service
from slos.plan import plan
from slos.text_table import text_table

HOURS, SEEDS = 4, (1, 2, 3)
HOUR = 3600
LEAST, MOST = 2, 12
START_UP = 180
"""Seconds from the creation of a replica to its first request."""
SLOTS, KV_TOKENS, PREFILL_RATE = 48, 100_000, 8_000
STEP, STEP_PER_SEQUENCE = 0.015, 0.0006
"""Seconds of a decoding step, and more of them for each active sequence."""
TTFT, TPOT, TARGET = 2.0, 0.05, Decimal("0.95")
STREAM_P99 = 60
MOST_RATE = 3.15
"""Requests per second of one replica at which :func:`load_test` still meets the target."""
TOKENS_IN_FLIGHT = {1.0: 42_000, 1.5: 19_000, 2.0: 12_000}
"""Tokens that a replica holds at MOST_RATE divided by the factor of bursts to serve."""
TOLERANCE = 0.1
"""Deviation from the target within which an autoscaler does nothing."""
MINUTE = 60
USUAL_UP, USUAL_DOWN = ReplicaStep(4, 100, 15), ReplicaStep(0, 100, 15)
"""The defaults of Kubernetes."""


@dataclass(slots=True)
class SimulatedRequest:
    """A request: arrival time in seconds, tokens, and the time of its first token."""

    at: float
    input: int
    output: int
    first: float = 0.0


def trace(hours: int, seed: int) -> list[SimulatedRequest]:
    """Draw arrivals: a cycle from 2 to 12 requests per second, and bursts of twice that."""
    random, found, now = Random(seed), [], 0.0
    end = hours * HOUR
    starts = [random.uniform(0, end) for _ in range(2 * hours)]
    bursts = [(start, start + random.uniform(90, 300)) for start in starts]
    while now < end:
        rate = 7 - 5 * sin(pi / 2 + 2 * pi * now / end)
        if any(start <= now < stop for start, stop in bursts):
            rate *= 2
        now += random.expovariate(rate)
        found.append(_request(random, now))
    return found


def _request(random: Random, at: float) -> SimulatedRequest:
    tokens = (random.lognormvariate(6.5, 0.8), random.lognormvariate(5.4, 0.7))
    return SimulatedRequest(at, min(int(tokens[0]) + 1, 8_000), min(int(tokens[1]) + 2, 1_500))


@dataclass(slots=True)
class Outcomes:
    """What became of the requests so far."""

    good: int = 0
    late: int = 0
    cut: int = 0
    recent: deque[tuple[float, bool]] = field(default_factory=deque)
    """Ends of the last two minutes: time, and whether a latency clause failed."""
    waits: deque[tuple[float, float, float]] = field(default_factory=deque)
    """Ends of the last minute: time, seconds in the queue, seconds of work."""

    def end(self, request: SimulatedRequest, now: float, tpot: float) -> None:
        """Count a request that ended."""
        late = request.first - request.at > TTFT or tpot > TPOT
        self.good += not late
        self.late += late
        self.recent.append((now, late))
        prefill = request.input / PREFILL_RATE
        wait = request.first - prefill - request.at
        self.waits.append((now, wait, now - request.first + prefill))


@dataclass(slots=True)
class Replica:
    """A server with in-flight batching: a queue, slots, a KV cache, a pace that falls with load.

    All active sequences decode at the same pace, so ``decoded`` counts the steps of the replica,
    and a sequence ends a fixed number of steps after its start.
    """

    ready: float
    stopping: float | None = None
    queue: deque[SimulatedRequest] = field(default_factory=deque)
    active: list[tuple[float, int, float, SimulatedRequest]] = field(default_factory=list)
    decoded: float = 0.0
    held: int = 0
    started: int = 0

    @property
    def load(self) -> int:
        """The sequences that wait or are active."""
        return len(self.queue) + len(self.active)

    def step(self, now: float, outcomes: Outcomes) -> None:
        """Serve one second."""
        while self.queue and len(self.active) < SLOTS:
            request = self.queue[0]
            tokens = request.input + request.output
            if self.active and self.held + tokens > KV_TOKENS:
                break
            self.queue.popleft()
            request.first = max(now, request.at) + request.input / PREFILL_RATE
            self.held += tokens
            self.started += 1
            heappush(self.active, (self.decoded + request.output, self.started, now, request))
        pace = STEP + STEP_PER_SEQUENCE * len(self.active)
        self.decoded += 1 / pace
        while self.active and self.active[0][0] <= self.decoded:
            _, _, start, request = heappop(self.active)
            self.held -= request.input + request.output
            outcomes.end(request, now + 1, (now + 1 - start) / request.output)


def load_test(rate: float, seed: int = 9, seconds: int = HOUR) -> tuple[float, float]:
    """Return the attainment of one replica at a steady rate, and the tokens that it holds."""
    random, replica, outcomes = Random(seed), Replica(0.0), Outcomes()
    at, held = random.expovariate(rate), 0
    for now in range(seconds):
        while at <= now:
            replica.queue.append(_request(random, at))
            at += random.expovariate(rate)
        replica.step(now, outcomes)
        held += replica.held
    return outcomes.good / (outcomes.good + outcomes.late), held / seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """The signals of the servers at one time; ``servers`` includes those that stop."""

    servers: int
    waiting: float
    kv: Sequence[float]
    active: Sequence[int]
    bad: int
    total: int
    queue_ratio: float


Demand = Callable[[Measured], float]
"""The demand for replicas."""


@dataclass(frozen=True, slots=True)
class SimulatedScaler:
    """An autoscaler: its demand, its rates, its windows in seconds."""

    name: str
    demand: Demand
    up: ReplicaStep = USUAL_UP
    down: ReplicaStep = USUAL_DOWN
    stabilization: int = 300
    grace: int = 30


def generated(burst: float = 1.5) -> SimulatedScaler:
    """Return the scaler that :mod:`autoscaling` generates, with headroom for bursts."""
    policy = example(burst)
    return SimulatedScaler(
        f"tokenslo, bursts of {burst:g}x",
        lambda measured: max(demands(policy, measured).values()),
        UP,
        DOWN,
        policy.stabilization_seconds,
        policy.grace_seconds,
    )


def example(burst: float) -> ScalingPolicy:
    """Return the policy of an SLO file with the objective of the simulation."""
    clauses = {"ttft": Decimal(str(TTFT)), "tpot": Decimal(str(TPOT))}
    objective = Objective("goodput", "goodput", TARGET, clauses=clauses)
    settings = Autoscaling(
        *("Deployment/chat", MOST, "http://prometheus:9090", LEAST),
        tokens_in_flight=TOKENS_IN_FLIGHT[burst],
        stream_p99=Decimal(STREAM_P99),
    )
    service = Service("slo.yaml", "chat", Decimal(28 * 86_400), (objective,), autoscaling=settings)
    return policy_of(plan(service), settings)


def demands(policy: ScalingPolicy, measured: Measured) -> dict[str, float]:
    """Return the demand by signal, as :mod:`autoscaling.queries` does, with its thresholds."""
    settings, servers = policy.autoscaling, measured.servers
    more, most = measured.waiting / settings.waiting, float(MOST_PER_REPLICA)
    least = policy.service.alerting.min_bad_events
    burn = 0.0
    if measured.bad >= least:
        burn = min(measured.bad / measured.total / float(1 - TARGET), MOST_BURN)
    return {
        "waiting": servers + more if measured.waiting > 0 else 0.0,
        "kv-cache": sum(measured.kv) / float(settings.kv_cache) * most,
        "tokens-in-flight": sum(measured.kv) * KV_TOKENS / settings.tokens_in_flight * most,
        "goodput": servers * burn,
    }


def _utilization(of: Callable[[int], float], target: float) -> Demand:
    """Scale an average over the servers, from their active sequences, to a target."""
    return lambda measured: sum(map(of, measured.active)) / target


def _cpu(active: int) -> float:
    """Return the CPU utilization: the engine's loop keeps a core busy while it has any sequence."""
    return 0.55 + 0.1 * active / SLOTS if active else 0.1


SCALERS = (
    SimulatedScaler("2 replicas", lambda _: LEAST),
    SimulatedScaler("12 replicas", lambda _: MOST),
    *map(generated, TOKENS_IN_FLIGHT),
    SimulatedScaler("CPU utilization 50%", _utilization(_cpu, 0.5)),
    SimulatedScaler("CPU utilization 70%", _utilization(_cpu, 0.7)),
    SimulatedScaler("GPU utilization 80%", _utilization(lambda active: float(active > 0), 0.8)),
    SimulatedScaler(
        "queue/compute ratio 1", lambda measured: measured.servers * measured.queue_ratio
    ),
)


@dataclass(frozen=True, slots=True)
class ScalerResult:
    """The result of one scaler: attainment as a share, and hours of replicas."""

    name: str
    attainment: float
    cut: int
    hours: float
    most: int


class Cluster:
    """Replicas behind a router that prefers the least loaded, and their autoscaler."""

    def __init__(self, scaler: SimulatedScaler) -> None:
        self.scaler = scaler
        begin = MOST if scaler.name == f"{MOST} replicas" else LEAST
        self.replicas = [Replica(0.0) for _ in range(begin)]
        self.outcomes = Outcomes()
        self.seconds = 0
        self.most = begin
        self.waiting: deque[int] = deque(maxlen=MINUTE // POLLING_SECONDS)
        self.wanted: deque[tuple[float, int]] = deque()
        self.counts: deque[tuple[float, int]] = deque()

    def run(self, arrivals: Sequence[SimulatedRequest]) -> ScalerResult:
        """Serve all arrivals."""
        now, index = 0.0, 0
        while index < len(arrivals) or any(replica.load for replica in self.replicas):
            serving = [r for r in self.replicas if r.ready <= now and r.stopping is None]
            while index < len(arrivals) and arrivals[index].at <= now:
                given = arrivals[index]
                request = SimulatedRequest(given.at, given.input, given.output)
                min(serving, key=lambda replica: replica.load).queue.append(request)
                index += 1
            for replica in self.replicas:
                if replica.ready <= now:
                    replica.step(now, self.outcomes)
            self._stop(now)
            if now % POLLING_SECONDS == 0:
                self._scale(now)
            self.seconds += len(self.replicas)
            now += 1
        outcomes = self.outcomes
        total = outcomes.good + outcomes.late + outcomes.cut
        attainment = outcomes.good / total
        return ScalerResult(
            self.scaler.name, attainment, outcomes.cut, self.seconds / HOUR, self.most
        )

    def _stop(self, now: float) -> None:
        """Remove stopping replicas that are empty; after the grace period their streams are cut."""
        for replica in [each for each in self.replicas if each.stopping is not None]:
            over = now - (replica.stopping or 0.0) >= self.scaler.grace
            if over or not replica.load:
                self.outcomes.cut += replica.load
                self.replicas.remove(replica)

    def _measure(self, now: float) -> Measured:
        servers = [replica for replica in self.replicas if replica.ready <= now]
        recent, waits = self.outcomes.recent, self.outcomes.waits
        while recent and recent[0][0] < now - 2 * MINUTE:
            recent.popleft()
        while waits and waits[0][0] < now - MINUTE:
            waits.popleft()
        self.waiting.append(sum(len(replica.queue) for replica in servers))
        work = sum(each[2] for each in waits)
        return Measured(
            len(servers),
            sum(self.waiting) / len(self.waiting),
            [replica.held / KV_TOKENS for replica in servers],
            [len(replica.active) for replica in servers],
            sum(late for _, late in recent),
            len(recent),
            sum(each[1] for each in waits) / work if work else 0.0,
        )

    def _scale(self, now: float) -> None:
        """Change the replicas as a HorizontalPodAutoscaler does."""
        alive = [replica for replica in self.replicas if replica.stopping is None]
        count = len(alive)
        demand = self.scaler.demand(self._measure(now))
        wanted = count if abs(demand / count - 1) <= TOLERANCE else ceil(demand)
        wanted = min(max(wanted, LEAST), MOST)
        self.wanted.append((now, wanted))
        while self.wanted[0][0] < now - self.scaler.stabilization:
            self.wanted.popleft()
        if wanted < count:
            wanted = min(max(each for _, each in self.wanted), count)
        self.counts.append((now, count))
        if wanted > count:
            up = self.scaler.up
            base = self._count_before(now - up.seconds)
            wanted = min(wanted, max(base + up.pods, base + base * up.percent // 100))
        elif wanted < count:
            down = self.scaler.down
            base = self._count_before(now - down.seconds)
            wanted = max(wanted, min(base - down.pods, base - base * down.percent // 100))
        for _ in range(wanted - count):
            self.replicas.append(Replica(now + START_UP))
        for replica in alive[: max(wanted, LEAST) - 1 : -1] if wanted < count else ():
            replica.stopping = now
        self.most = max(self.most, len(self.replicas))

    def _count_before(self, then: float) -> int:
        while len(self.counts) > 1 and self.counts[1][0] <= then:
            self.counts.popleft()
        return self.counts[0][1]


def simulate(hours: int = HOURS, seeds: Sequence[int] = SEEDS) -> list[ScalerResult]:
    """Play the traces of all seeds before every scaler; return the means."""
    traces = [trace(hours, seed) for seed in seeds]
    found = []
    for scaler in SCALERS:
        played = [Cluster(scaler).run(each) for each in traces]
        found.append(
            ScalerResult(
                scaler.name,
                sum(each.attainment for each in played) / len(played),
                sum(each.cut for each in played),
                sum(each.hours for each in played) / len(played),
                max(each.most for each in played),
            )
        )
    return found


def table(results: Sequence[ScalerResult]) -> Iterator[str]:
    """Yield the lines of the table."""
    heads = ("scaled on", "good requests", "streams cut", "replica-hours", "most replicas")
    lines: list[tuple[str, ...]] = [heads]
    for each in results:
        numbers = (f"{100 * each.attainment:.1f}%", f"{each.cut:,}", f"{each.hours:.1f}")
        lines.append((each.name, *numbers, str(each.most)))
    yield from text_table(lines, right=range(1, len(heads)))


def main(*arguments: str) -> None:
    """Print the table."""
    hours = positive_integer(arguments[0], "HOURS") if arguments else HOURS
    for line in table(simulate(hours)):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
