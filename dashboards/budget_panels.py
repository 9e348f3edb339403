"""Panels of error budgets from recorded series, for one service or for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grafanalib import core

from dashboards import panels
from dashboards.panels import Column, PanelQuery, levels
from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Vector,
    aggregate,
    call,
    ignoring,
    number,
    vector,
)
from slos import names

PRESENT = "1h"
"""The window of the present burn rate."""
_PRESENT_SECONDS = 3600
_KEYS = ("service", "slo")
_SPENT = levels((None, panels.RED), (0, panels.ORANGE), ("0.25", panels.GREEN))


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """The recorded series that ``matchers`` select; ``labels`` distinguish their objectives."""

    matchers: tuple[Matcher, ...]
    labels: Mapping[str, str]

    def series(self, name: str, *, window: str | None = None) -> Vector:
        """Select a recorded series."""
        return vector(name, self.matchers, window)

    def alerts(self, metric: str = "ALERTS", *, firing: bool = True) -> Vector:
        """Select alerts of objectives."""
        firing_ = (Matcher("alertstate", "=", "firing"),) if firing else ()
        return vector(metric, (*self.matchers, Matcher("slo", "!=", ""), *firing_))

    def over(self, op: str, expr: Expr) -> Expr:
        """Aggregate the groups of each objective."""
        return aggregate(op, expr, _KEYS)

    @property
    def legend(self) -> str:
        """The legend of an objective."""
        return panels.legend(self.labels)

    @property
    def budget_left(self) -> Expr:
        """The least budget left of each objective."""
        return self.over("min", self.series(names.BUDGET_REMAINING))

    @property
    def target(self) -> Expr:
        """The target of each objective."""
        return self.over("max", self.series(names.TARGET))

    @property
    def burn_rate(self) -> Expr:
        """The current burn rate of each objective, of its worst group."""
        bad, total = (
            call("sum_over_time", self.series(name, window=PRESENT))
            for name in (names.BAD, names.TOTAL)
        )
        ratio = self.over("max", bad / total.compare(">", number(0)))
        return ratio / (number(1) - self.target)

    @property
    def exhaustion(self) -> Expr:
        """The seconds until each budget is exhausted at the current rate of bad events.

        The period allows ``period_bad / spent`` bad events.
        """
        left = self.series(names.BUDGET_REMAINING)
        allowance = self.series(names.PERIOD_BAD) * left / (number(1) - left)
        bad = call("sum_over_time", self.series(names.BAD, window=PRESENT))
        seconds = allowance / bad.compare(">", number(0)) * number(_PRESENT_SECONDS)
        return self.over("min", call("clamp_min", seconds, number(0)))

    @property
    def firing(self) -> Expr:
        """The number of firing alerts of each objective."""
        return aggregate("count", self.alerts(), _KEYS).or_(self.target * number(0))

    @property
    def firing_since(self) -> Expr:
        """The start time (milliseconds) of the oldest firing alert of each objective."""
        since = self.alerts("ALERTS_FOR_STATE", firing=False)
        return self.over(
            "min", Binary(since, "and", self.alerts(), matching=ignoring("alertstate"))
        ) * number(1000)


def budget_tiles(recorded: RecordedSeries) -> list[core.Panel]:
    """Show the budget left, and the time until it is spent, one tile per objective."""
    return [
        panels.tiles(
            "Budget left",
            "Share of the error budget that is left over the SLO period; below 0% the objective is "
            "missed.",
            [PanelQuery(recorded.budget_left, recorded.legend)],
            unit=panels.RATIO,
            steps=_SPENT,
            empty="no SLO rules are evaluated",
        ),
        panels.tiles(
            "Time until the budget is spent",
            f"How long the budget lasts at the rate of bad events of the last {PRESENT}; only "
            "objectives with bad events are shown.",
            [PanelQuery(recorded.exhaustion, recorded.legend)],
            unit=panels.SECONDS,
            steps=levels((None, panels.RED), (86_400, panels.ORANGE), (604_800, panels.GREEN)),
            empty=f"no bad events in {PRESENT}",
        ),
    ]


def objectives_table(
    recorded: RecordedSeries, links: tuple[tuple[str, str], ...] = ()
) -> core.Panel:
    """List objectives by budget left."""
    return panels.table(
        "Objectives, the least budget first",
        "One row per objective with its worst group. A burn rate above 1 spends the budget early: "
        "open the error budget of that service.",
        recorded.labels,
        [
            Column("Target", recorded.target, panels.RATIO),
            Column("Budget left", recorded.budget_left, panels.RATIO, _SPENT, links),
            Column(
                f"Burn rate, {PRESENT}",
                recorded.burn_rate,
                panels.NUMBER,
                levels((None, panels.GREEN), (1, panels.ORANGE)),
            ),
            Column("Spent in", recorded.exhaustion, panels.SECONDS),
            Column(
                "Alerts firing",
                recorded.firing,
                panels.COUNT,
                levels((None, panels.GREEN), (1, panels.RED)),
            ),
            Column("Firing since", recorded.firing_since, panels.AGO),
        ],
        hidden={"service", "slo"} - {*recorded.labels},
        sort="Budget left",
    )


def incidents(recorded: RecordedSeries, by: str) -> core.Panel:
    """Draw when alerts of objectives fired, one line per value of ``by``."""
    alerts = aggregate("max", recorded.alerts(), (by,))
    calm = aggregate("max", recorded.series(names.TARGET), (by,)) * number(0)
    return panels.states(
        "Incidents",
        "Red while an alert of the objective fires. Select a red stretch to see its time range in "
        "every panel.",
        [PanelQuery(alerts.or_(calm), f"{{{{{by}}}}}")],
        {"0": ("quiet", panels.GREEN), "1": ("firing", panels.RED)},
    )
