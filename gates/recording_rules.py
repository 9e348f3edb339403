"""Recording rules that compute the bounds of :mod:`gates.statistics` in PromQL, for every arm.

The rules record each value of the rollout's label, whatever its arm.  A verdict query then
compares two of these values (:mod:`gates.verdict_query`).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from gates.criteria import RolloutGate, ShareCriterion
from gates.queries import health, increase
from promql.expr import Binary, Expr, aggregate, ignoring, number, on, pretty, vector
from slos.names import series_labels
from slos.queries import Scope
from slos.signals import PROMPT_CLASS

SHARE = "slo:rollout_bad:ratio"
"""The share of bad events of an arm at the mix of production: ``bound`` is ``low`` or ``high``, as
in :class:`gates.statistics.Bounds`."""
DISTANCE = "slo:rollout_distance:square"
"""The squared distance from these shares to their confidence bounds, by ``bound``."""
PROMOTE_LOWER, PROMOTE_UPPER = "promote_lower", "promote_upper"
ABORT_LOWER, ABORT_UPPER = "abort_lower", "abort_upper"
USED = "slo:rollout_used:ratio"
HEALTH = "slo:rollout_health:min"
_SLO = ("service", "slo")

Rule = dict[str, object]


def bad_events(gate: RolloutGate) -> str:
    """Return the name of the series of bad events by arm and prompt class."""
    return f"slo:rollout_bad:increase{gate.window}"


def _total(gate: RolloutGate) -> str:
    return f"slo:rollout_total:increase{gate.window}"


_MIX = "slo:rollout_class:ratio"


def rules(gate: RolloutGate) -> Iterator[Rule]:
    """Yield the rules in the order of their evaluation."""
    service, label = gate.plan.service.service, gate.rollout.label
    scope = Scope(gate.plan.service.selector, gate.window)
    for criterion in gate.criteria:
        labels = series_labels(service, criterion.name)
        if isinstance(criterion, ShareCriterion):
            by = (label, PROMPT_CLASS)
            bad, total = (
                increase(counter, gate.window, by) for counter in (criterion.bad, criterion.total)
            )
            yield _rule(bad_events(gate), bad.or_(total * number(0)), labels)
            yield _rule(_total(gate), total, labels)
        else:
            yield _rule(USED, aggregate("max", criterion.used(scope), (label,)), labels)
    yield _rule(HEALTH, aggregate("min", health(scope), (label,)), {"service": service})
    yield _rule(_MIX, _mix(gate), {})
    for (name, bound), expr in _bounds(gate).items():
        yield _rule(name, expr, {"bound": bound})


def _rule(name: str, expr: Expr, labels: dict[str, str]) -> Rule:
    return {"record": name, "expr": pretty(expr), **({"labels": labels} if labels else {})}


def _mix(gate: RolloutGate) -> Expr:
    total = vector(_total(gate), {"service": gate.plan.service.service})
    by_class = aggregate("sum", total, (*_SLO, PROMPT_CLASS)).compare(">", number(0))
    every = aggregate("sum", total, _SLO).compare(">", number(0))
    return Binary(by_class, "/", every, matching=on(*_SLO, group_left=()))


def _bounds(gate: RolloutGate) -> dict[tuple[str, str], Expr]:
    """Return the shares and the distances to their bounds, by series and ``bound``."""
    service = {"service": gate.plan.service.service}
    arm = (*_SLO, gate.rollout.label)
    bad = vector(bad_events(gate), service)
    total = vector(_total(gate), service).compare(">", number(0))

    def weighted(by_class: Expr) -> Expr:
        return Binary(
            by_class, "*", vector(_MIX, service), matching=on(*_SLO, PROMPT_CLASS, group_left=())
        )

    def distance(z: float, sign: str) -> Expr:
        k, half = Decimal(str(z)) ** 2, number(Decimal("0.5"))
        variance = bad - bad * bad / total + number(k / 4)
        width = number(Decimal(str(z))) * Binary(variance, "^", half)
        shift = number(k) * (half - bad / total)
        of_class = weighted(Binary(width, sign, shift) / (total + number(k)))
        return aggregate("sum", Binary(of_class, "^", number(2)), arm)

    low = vector(SHARE, {**service, "bound": "low"})
    unseen = number(1) - aggregate("sum", weighted(Binary(total, "^", number(0))), arm)
    return {
        (SHARE, "low"): aggregate("sum", weighted(bad / total), arm),
        (SHARE, "high"): Binary(low, "+", unseen, matching=ignoring("bound")),
        (DISTANCE, PROMOTE_LOWER): distance(gate.promote_z, "-"),
        (DISTANCE, PROMOTE_UPPER): distance(gate.promote_z, "+"),
        (DISTANCE, ABORT_LOWER): distance(gate.abort_z, "-"),
        (DISTANCE, ABORT_UPPER): distance(gate.abort_z, "+"),
    }
