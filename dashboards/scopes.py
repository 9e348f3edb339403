"""The servers, models and versions that a dashboard's variables select, and queries of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from grafanalib import core

from dashboards import grafana
from dashboards.panels import RATE_INTERVAL, PanelQuery
from promql.expr import Expr, Matcher, Vector, aggregate, call, decimal_text, equal, number
from slos.queries import INSTANCE, Scope
from slos.signals import SIGNALS, TENANT

BY_INSTANCE = f"{{{{{INSTANCE}}}}}"
BY_VERSION = "version {{version}}"

_VARIABLES: Mapping[str, tuple[str, str]] = {
    "cluster": ("Cluster", ".*"),
    "namespace": ("Namespace", ".*"),
    "model": ("Model", ".*"),
    "version": ("Version", ".*"),
    "pod": ("Pod", ".*"),
    INSTANCE: ("Instance", ".+"),  # every scraped series has it
}
"""Labels that a reader can select, with the title and the pattern of All."""

_TENANTS = Matcher(TENANT, "=~", f"${TENANT}")


def selected(selector: Mapping[str, str], native: frozenset[str] = frozenset()) -> Scope:
    """Return the scope of the variables; labels that ``selector`` fixes have none."""
    also = tuple(Matcher(name, "=~", f"${name}") for name in _VARIABLES if name not in selector)
    return Scope(selector, RATE_INTERVAL, also, native)


def variables(selector: Mapping[str, str], *, tenants: bool = False) -> list[core.Template]:
    """Return the variables of :func:`selected`, each limited by the ones before it."""
    found = []
    before: tuple[Matcher, ...] = ()
    for name, (label, everything) in _VARIABLES.items():
        if name not in selector:
            models = Scope(selector, also=before).series("tokenslo_model_info")
            found.append(grafana.variable(name, label, models, everything=everything))
            before = (*before, Matcher(name, "=~", f"${name}"))
    if tenants and TENANT not in selector:
        requests = Scope(selector, also=before).series(SIGNALS["tenant_requests"].metric)
        found.append(grafana.variable(TENANT, "Tenant", requests))
    return found


def rate(scope: Scope, key: str, *by: str) -> Expr:
    """Return the rate of a counter signal."""
    signal = SIGNALS[key]
    return scope.rate(signal.metric, *equal(signal.fixed), by=by)


def tenant_rate(scope: Scope, key: str, *by: str) -> Expr:
    """Return the rate of a signal by tenant, of the selected tenants."""
    signal = SIGNALS[key]
    tenants = () if TENANT in scope.selector else (_TENANTS,)
    return scope.rate(signal.metric, *equal(signal.fixed), *tenants, by=by)


def quantile(scope: Scope, q: Decimal, key: str, *by: str) -> Expr:
    """Estimate a quantile of a histogram signal for each combination of ``by``."""
    metric = SIGNALS[key].metric
    if key in scope.native:
        return call("histogram_quantile", number(q), scope.rate(metric, by=by))
    buckets = scope.rate(f"{metric}_bucket", by=("le", *by))
    return call("histogram_quantile", number(q), buckets)


def quantiles(scope: Scope, key: str, *shares: Decimal) -> list[PanelQuery]:
    """Return the quantiles of a histogram signal, the median and the 99th among them."""
    every = sorted({Decimal("0.5"), Decimal("0.99"), *shares})
    return [PanelQuery(quantile(scope, q, key), f"p{decimal_text(q * 100)}") for q in every]


def total(scope: Scope, key: str, *by: str) -> Expr:
    """Add up a gauge signal."""
    return aggregate("sum", scope.gauge(key), by)


def each(op: str, series: Expr, *by: str) -> Expr:
    """Aggregate ``series`` by instance and ``by``."""
    return aggregate(op, series, (*by, INSTANCE))


def increase(series: Vector, by: Iterable[str] = ()) -> Expr:
    """Return the increase of a counter over the dashboard's time range."""
    ranged = Vector(series.metric, series.matchers, "$__range")
    return aggregate("sum", call("increase", ranged), tuple(by))
