"""The demand for replicas as PromQL.

Every query has one element without labels, in replicas.  It has none only where a signal is not
measured: the scaler must then keep its replicas, and not read 0.  A server that is not scraped
counts with the mean of the others.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    aggregate,
    call,
    equal,
    ignoring,
    number,
    on,
    vector,
)
from promql.query import read_query
from slos.durations import parse_duration
from slos.indicator_events import own_matchers, usage_ratio
from slos.indicators import among
from slos.model import Objective, Service
from slos.queries import INSTANCE, Scope
from slos.signals import OUTCOME_CLAUSE, RESULTS, SIGNALS

MOST_BURN = 2
"""The largest factor by which lost goodput multiplies the replicas."""
TOLERANCE = Decimal("1.1")
"""The demand per replica up to which a HorizontalPodAutoscaler adds none, with a target of 1."""
_TARGET = ("job", INSTANCE)
_MODELS = "tokenslo_model_info"
_MEMORY = "1h"
"""How long a server that is not scraped counts, while its target exists."""
_SMOOTHING = "1m"
_REPLICAS = {
    "Deployment": ("kube_deployment_spec_replicas", "deployment"),
    "StatefulSet": ("kube_statefulset_replicas", "statefulset"),
}
"""Metrics of kube-state-metrics, and their label with the name of the workload."""


def waiting_demand(scope: Scope, per_replica: int) -> Expr:
    """Add a replica for every ``per_replica`` waiting sequences; none if no sequence waits."""
    gauge = scope.gauge("sequences_waiting")
    smooth = call("avg_over_time", replace(gauge, window=_SMOOTHING))
    waiting = _measured(aggregate("sum", smooth, _TARGET))
    mean = aggregate("avg", waiting)
    more = number(1) + mean / number(per_replica)
    some = Binary(mean, ">", number(0), bool_=True)
    return _servers(scope, waiting) * more * some


def kv_cache_demand(scope: Scope, share: Decimal) -> Expr:
    """Return the replicas that hold the used KV cache at no more than this share of theirs."""
    used = usage_ratio("kv_headroom", (*equal(scope.selector), *scope.also))
    fullest = _measured(aggregate("max", used, _TARGET))
    mean = aggregate("sum", fullest) / aggregate("count", fullest)
    return mean * _servers(scope, fullest) / number(share) * number(TOLERANCE)


def tokens_demand(scope: Scope, per_replica: int) -> Expr:
    """Return the replicas that hold the tokens in the KV cache, at most ``per_replica`` each."""
    blocks, size = scope.gauge("kv_blocks_used"), scope.gauge("kv_block_tokens")
    held = Binary(blocks, "*", size, matching=ignoring("state"))
    tokens = _measured(aggregate("sum", held, _TARGET))
    held = aggregate("avg", tokens) * _servers(scope, tokens)
    return held / number(per_replica) * number(TOLERANCE)


def goodput_demand(scope: Scope, objective: Objective, service: Service, least_bad: int) -> Expr:
    """Multiply the replicas by the burn rate of an objective, as far as replicas reduce it.

    These are requests that fail a latency clause and, if they spend the error budget, shed ones: a
    server with a bounded queue sheds load while latency and queue look well.  More replicas do not
    help other failures, nor clients over their quota.  The demand is 0 below ``least_bad`` such
    requests in the window, and without requests.
    """
    metric = SIGNALS["goodput"].metric
    of = own_matchers(objective, service.service)
    shed = tuple(each for each in service.spending(objective) if each == "shed")
    late = (*of, Matcher("result", "=", "bad"), Matcher("clause", "!=", OUTCOME_CLAUSE))
    spent = scope.rate(metric, *late)
    if shed:
        spent = spent + scope.rate(metric, *of, among("result", shed))
    seconds = parse_duration(scope.window)
    bad = spent.compare(">=", number(_rounded(least_bad / seconds)))
    total = _measured(scope.rate(metric, *of, among("result", (*RESULTS, *shed))))
    burn = bad / total / number(1 - objective.target)
    bounded = call("clamp_max", burn, number(MOST_BURN)).or_(total * number(0))
    return bounded * _servers(scope, aggregate("group", scope.series(_MODELS), _TARGET))


def wake_demand(query: str) -> Expr:
    """Return 1 replica while a query is above 0, else 0."""
    return Binary(read_query(query).sum, ">", number(0), bool_=True)


def no_replicas(scope: Scope, workload: str, namespace: str) -> Expr:
    """Return 0 if the workload has 0 replicas, else nothing."""
    kind, _, name = workload.partition("/")
    metric, label = _REPLICAS[kind]
    of = {"namespace": namespace} if namespace else {}
    foreign = tuple(each for each in scope.foreign() if each.label not in of)
    replicas = vector(metric, (*foreign, *equal({**of, label: name})))
    return aggregate("sum", replicas).compare("==", number(0))


def _rounded(per_second: Decimal) -> Decimal:
    return per_second.quantize(Decimal("0.0001"))


def _measured(amount: Expr) -> Expr:
    """Leave out NaN: it is no measurement, and scalers read it in different ways."""
    return amount.compare(">=", number(0))


def _servers(scope: Scope, by_server: Expr) -> Expr:
    """Count the servers with a value, and those that had a model and have a target."""
    models = call("last_over_time", scope.series(_MODELS, window=_MEMORY))
    seen = aggregate("group", models, _TARGET)
    known = seen.and_(vector("up", scope.foreign()), on(*_TARGET))
    return aggregate("count", known.or_(by_server))
