"""Compress the time of rules and queries, so that an incident plays in two minutes.

Every duration is divided by one factor: windows, offsets, steps of subqueries, ``for``,
``keep_firing_for`` and the intervals of groups.  By the default factor a second in the lab is
:data:`FACTOR` seconds in production:

=====  =======    =====  ==========
1m     3s         2h     6m
5m     15s        6h     18m
10m    30s        1d     1h12m
30m    1m30s      3d     3h36m
1h     3m         28d    1d9h36m
=====  =======    =====  ==========

Burn rates and error ratios are ratios over windows, so they keep their thresholds, and the time to
detect scales: 20 seconds in the lab are 400 in production.  So do recorded sums over windows,
because the intervals of the groups shrink with the windows.

The servers and their clients are not faster than in production, so these keep their values:

- latencies: a first token after 800 ms is late in the lab as well;
- rates per second, as in ``deriv(…) * 60 > 1``: requests arrive in real time;
- counts: ``min_bad_events`` counts within a window that holds a twentieth of production's events,
  so alerts at equal traffic come later than in production, never earlier;
- ages of streams at disconnect: time-outs of clients are real.

Two things do not scale by the factor:

- an offset of a day or more compares with an earlier day.  The lab has none: the offset leads into
  the healthy phase instead, see :attr:`TimeScale.day_offset`;
- the age of the engine's statistics, a threshold in seconds of a suspended process, is
  divided by the factor but stays above :data:`_LEAST_AGE`, which scrapes need.

A window that is shorter than :data:`_LEAST_WINDOW` after that gets this length: a rate needs two
scrapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from promql import duration_expressions
from promql.parse import parse
from promql.tree import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Negative,
    Number,
    Paren,
    Subquery,
    Vector,
    selectors,
)

FACTOR = 20.0
_DAY = 86_400.0
_LEAST_WINDOW = 3.0
_LEAST_AGE = 5.0
_AGES = frozenset({"tokenslo_engine_stats_age_seconds"})
_TIMES = ("for", "keep_firing_for")


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A compression of time.

    ``day_offset`` replaces offsets of a day or more, in seconds of the lab; without it they are
    divided like all others.
    """

    factor: float = FACTOR
    day_offset: float | None = None

    def rules(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Compress a rule file, and drop the annotations, which nothing in the lab reads."""
        return {**content, "groups": [self._group(group) for group in content["groups"]]}

    def expression(self, text: str) -> str:
        """Compress an expression; raises promql.lexer.InvalidPromQL or ValueError."""
        return str(self._node(parse(text)))

    def duration(self, text: str, least: float = 0.0) -> str:
        """Compress a duration; raises ValueError if a query decides its length."""
        return _milliseconds(max(least, _seconds(text) / self.factor))

    def _group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        rules = [self._rule(rule) for rule in group["rules"]]
        return {**group, "interval": self.duration(group["interval"]), "rules": rules}

    def _rule(self, rule: Mapping[str, Any]) -> dict[str, Any]:
        times = {name: self.duration(rule[name]) for name in _TIMES if name in rule}
        kept = {name: value for name, value in rule.items() if name != "annotations"}
        return {**kept, "expr": self.expression(rule["expr"]), **times}

    def _node(self, node: Expr) -> Expr:
        match node:
            case Vector():
                window = None if node.window is None else self.duration(node.window, _LEAST_WINDOW)
                return replace(node, window=window, offset=self._offset(node.offset))
            case Subquery():
                return replace(
                    node,
                    expr=self._node(node.expr),
                    window=self.duration(node.window, _LEAST_WINDOW),
                    step=self.duration(node.step) if node.step else "",
                    offset=self._offset(node.offset),
                )
            case Call():
                return replace(node, args=tuple(map(self._node, node.args)))
            case Aggregate():
                parameter = node.parameter and self._node(node.parameter)
                return replace(node, expr=self._node(node.expr), parameter=parameter)
            case Binary():
                left, right = self._node(node.left), self._node(node.right)
                if node.op in COMPARISONS and isinstance(right, Number) and _is_age(left):
                    right = Number(str(max(_LEAST_AGE, (right.value or 0.0) / self.factor)))
                return replace(node, left=left, right=right)
            case Negative() | Paren():
                return replace(node, expr=self._node(node.expr))
        return node

    def _offset(self, offset: str | None) -> str | None:
        if offset is None:
            return None
        seconds = _seconds(offset)
        is_past_day = seconds >= _DAY and self.day_offset is not None
        return _milliseconds(self.day_offset or 0.0 if is_past_day else seconds / self.factor)


def _is_age(expr: Expr) -> bool:
    return any(each.name in _AGES for each in selectors(expr))


def _seconds(text: str) -> float:
    length = duration_expressions.seconds(parse(text))
    if length is None:
        raise ValueError(f"{text!r} has no length of its own")
    return length


def _milliseconds(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
