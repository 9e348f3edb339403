"""Rules of tokenslo, Sloth and Pyrra for the same SLO.

Sloth's and Pyrra's are copied from their documentation and golden files (Sloth 0.16 with its
windows of 30 days, whose factors it scales; Pyrra 0.10 with its generic rules), with the selectors
that their users would write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import alerts.rules
from promql.expr import vector
from slos import names
from slos.durations import format_duration, parse_duration
from slos.model import Objective, Service, TimeSlices
from slos.outcomes import FAILURES
from slos.plan import plan
from tests.rule_values.traffic import BOUNDARY, DAY, DURATION, FULL, REQUESTS

TARGET = Decimal("0.99")
EVERY = 30
"""Seconds between evaluations of groups without an interval."""
SLICE_TARGET = Decimal("0.95")
"""Minimum ratio of good events in a good time slice."""


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A recording rule, evaluated every ``every`` seconds."""

    name: str
    expr: str
    labels: Mapping[str, str]
    every: int

    def is_read_by(self, expr: str) -> bool:
        return bool(re.search(rf"(?<![\w:]){self.name}(?![\w:])", expr))

    def is_summed_by(self, expr: str) -> bool:
        """Whether an expression reads a range of the recorded values."""
        return bool(re.search(rf"(?<![\w:]){self.name}\{{[^}}]*\}}\[", expr))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's rules of an SLO, whose ``objective`` is one of :data:`OBJECTIVES`.

    ``alerts`` are expressions and the seconds between their evaluations; ``ratios`` are queries for
    the error ratio of each window, ``whole`` for that of the period, ``budget`` for the remaining
    budget.
    """

    name: str
    objective: str
    period: str
    recordings: Sequence[RecordingRule]
    alerts: Sequence[tuple[str, int]]
    ratios: Mapping[str, str]
    whole: str
    budget: str

    def layers(self) -> list[list[RecordingRule]]:
        """Return the recordings in layers that only read earlier layers."""
        rest, layers = list(self.recordings), list[list[RecordingRule]]()
        while rest:
            layer = [one for one in rest if not any(other.is_read_by(one.expr) for other in rest)]
            layers.append(layer)
            rest = [one for one in rest if one not in layer]
        return layers

    def is_summed(self, recording: RecordingRule) -> bool:
        """Whether another recording sums a recording over time."""
        return any(recording.is_summed_by(other.expr) for other in self.recordings)

    def isolated(self) -> Tool:
        """Return the tool with unique names of the series that are not summed over time.

        Rules of several periods then share the series that they sum, and no others.
        """
        own = [one.name for one in self.recordings if not self.is_summed(one)]
        named = re.compile(rf"(?<![\w:])({'|'.join(own)})(?![\w:])")

        def renamed(text: str) -> str:
            return named.sub(rf"\1:{self.period}", text)

        return replace(
            self,
            recordings=[
                replace(one, name=renamed(one.name), expr=renamed(one.expr))
                for one in self.recordings
            ],
            alerts=[(renamed(expr), every) for expr, every in self.alerts],
            ratios={window: renamed(expr) for window, expr in self.ratios.items()},
            whole=renamed(self.whole),
            budget=renamed(self.budget),
        )


OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective("availability", "availability", TARGET),
        Objective("e2e", "e2e", TARGET, BOUNDARY),
        Objective("ttft", "ttft", TARGET, BOUNDARY),
        Objective("goodput", "goodput", TARGET, clauses={"ttft": BOUNDARY}),
        Objective("kv-headroom", "kv_headroom", TARGET, FULL),
        Objective("by-server", "availability", TARGET, group_by=("instance",)),
        Objective("minutes", "availability", TARGET, slices=TimeSlices(Decimal(60), SLICE_TARGET)),
        Objective(
            "5-minutes", "availability", TARGET, slices=TimeSlices(Decimal(300), SLICE_TARGET)
        ),
    )
}


def tools(model: str, name: str, period: Decimal) -> Sequence[Tool]:
    """Return the rules of each tool for an objective of a model over ``period`` seconds."""
    return [tokenslo(model, name, period), *_peers(IndicatorSelectors.of(model, name), period)]


def tokenslo(model: str, name: str, period: Decimal) -> Tool:
    """Return tokenslo's rules; a grouped objective is read for its first group."""
    objective = OBJECTIVES[name]
    service = Service("", model, window=period, selector={"model": model}, objectives=(objective,))
    planned = plan(service)
    (only,) = planned.objectives
    mine = names.series_labels(model, name)
    mine |= dict.fromkeys(objective.group_by, f"{model}-0")
    recordings, alerting = list[RecordingRule](), list[tuple[str, int]]()
    for group in alerts.rules.groups(planned):
        every = int(parse_duration(str(group["interval"])))
        for rule in group["rules"]:  # type: ignore[attr-defined]
            if "alert" in rule:
                alerting.append((rule["expr"], every))
            else:
                # Tools of several periods share what they record, but not their labels.
                labels = names.series_labels(model, name)
                recordings.append(RecordingRule(rule["record"], rule["expr"], labels, every))
    ratios = {window: str(vector(names.error_ratio(window), mine)) for window in only.windows}
    whole, budget = (
        str(vector(series, mine)) for series in (names.PERIOD_ERROR_RATIO, names.BUDGET_REMAINING)
    )
    return Tool(
        "tokenslo", name, format_duration(period), recordings, alerting, ratios, whole, budget
    )


@dataclass(frozen=True, slots=True)
class IndicatorSelectors:
    """The selectors that a user of Sloth or Pyrra would write for an indicator.

    Bad events are ``failed``, or ``total`` minus ``good``.
    """

    model: str
    indicator: str
    total: str
    failed: str = ""
    good: str = ""

    @classmethod
    def of(cls, model: str, indicator: str) -> IndicatorSelectors:
        if indicator == "e2e":
            count, bucket = (f"{DURATION}_{part}" for part in ("count", "bucket"))
            bucket_labels = f'{{model="{model}",le="{BOUNDARY}"}}'
            return cls(
                model, indicator, f'{count}{{model="{model}"}}', good=f"{bucket}{bucket_labels}"
            )
        failed = "|".join(FAILURES)
        return cls(
            model,
            indicator,
            f'{REQUESTS}{{model="{model}",outcome=~"ok|{failed}"}}',
            failed=f'{REQUESTS}{{model="{model}",outcome=~"{failed}"}}',
        )

    def ratio(self, window: str) -> str:
        """Return the error ratio over a window in the form of both tools."""
        total = f"sum(rate({self.total}[{window}]))"
        if self.failed:
            return f"(sum(rate({self.failed}[{window}]))) / ({total})"
        return f"({total} - sum(rate({self.good}[{window}]))) / ({total})"


def _peers(selected: IndicatorSelectors, period: Decimal) -> tuple[Tool, Tool]:
    return _sloth(selected, period), _pyrra(selected, period)


_SLOTH_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def _sloth(selected: IndicatorSelectors, period: Decimal) -> Tool:
    """Return Sloth's rules: seven windows of the raw metrics; the period averages the shortest."""
    model, slo = selected.model, selected.indicator
    days, budget = format_duration(period), float(1 - TARGET)
    # The name of a period of one day would be that of a window.
    whole = f"{days}_period" if days in _SLOTH_WINDOWS else days
    ids = {"sloth_id": f"{model}-{slo}", "sloth_service": model, "sloth_slo": slo}
    mine = "{" + ",".join(f'{label}="{value}"' for label, value in ids.items()) + "}"
    ratio, joined = "slo:sli_error:ratio_rate", "on(sloth_id, sloth_slo, sloth_service) group_left"
    exprs = {window: selected.ratio(window) for window in _SLOTH_WINDOWS} | {
        whole: f"sum_over_time({ratio}5m{mine}[{days}])"
        f" / ignoring (sloth_window) count_over_time({ratio}5m{mine}[{days}])"
    }
    about = {
        "slo:objective:ratio": f"vector({float(TARGET)})",
        "slo:error_budget:ratio": f"vector(1-{float(TARGET)})",
        "slo:time_period:days": f"vector({int(period / 86_400)})",
        "slo:current_burn_rate:ratio": f"{ratio}5m{mine} / {joined} slo:error_budget:ratio{mine}",
        "slo:period_burn_rate:ratio": (
            f"{ratio}{whole}{mine} / {joined} slo:error_budget:ratio{mine}"
        ),
        "slo:period_error_budget_remaining:ratio": f"1 - slo:period_burn_rate:ratio{mine}",
        "sloth_slo_info": "vector(1)",
    }
    scale = float(period / (30 * 86_400))

    def burns(window: str, factor: float) -> str:
        threshold = f"({factor * scale} * {budget})"
        return f"max({ratio}{window}{mine} > {threshold}) without (sloth_window)"

    def either(*pairs: tuple[str, str, float]) -> str:
        return " or ".join(f"({burns(a, f)} and {burns(b, f)})" for a, b, f in pairs)

    return Tool(
        "Sloth",
        slo,
        days,
        [
            *(
                RecordingRule(f"{ratio}{window}", expr, {**ids, "sloth_window": window}, EVERY)
                for window, expr in exprs.items()
            ),
            *(RecordingRule(name, expr, ids, EVERY) for name, expr in about.items()),
        ],
        [
            (either(("5m", "1h", 14.4), ("30m", "6h", 6)), EVERY),
            (either(("2h", "1d", 3), ("6h", "3d", 1)), EVERY),
        ],
        {window: f"{ratio}{window}{mine}" for window in _SLOTH_WINDOWS},
        f"{ratio}{whole}{mine}",
        f"slo:period_error_budget_remaining:ratio{mine}",
    )


# Windows and burn factor of each pair at 28 days; for other periods the windows are scaled.
_PYRRA_PAIRS = (("5m", "1h", 14), ("30m", "6h", 7), ("2h", "1d", 2), ("6h", "4d", 1))


# Minimum days of the period, and seconds between evaluations of the whole period.
_PYRRA_INTERVALS = ((49, 240), (7, 150), (0, EVERY))


def _pyrra(selected: IndicatorSelectors, period: Decimal) -> Tool:
    """Return Pyrra's rules: seven windows of the raw metrics, and the increase over the period."""
    whole, slo = format_duration(period), selected.indicator
    ids = {"model": selected.model, "slo": f"{selected.model}-{slo}"}
    every = next(interval for days, interval in _PYRRA_INTERVALS if period >= days * DAY)
    mine = ",".join(f'{label}="{value}"' for label, value in ids.items())
    metric = DURATION if selected.good else "llm_requests"
    rate, increase = f"{metric}:burnrate", f"{metric}:increase{whole}"
    budget = f"(1-{TARGET})"
    increased = {increase: (f"sum by (model, outcome) (increase({selected.total}[{whole}]))", ids)}
    if selected.good:
        good_ids = {**ids, "le": str(BOUNDARY)}
        increased = {
            increase: (f"sum by (model) (increase({selected.total}[{whole}]))", {**ids, "le": ""}),
            # Pyrra uses the same name, with another `le`; layers here need distinct names.
            f"{increase}:good": (f"sum by (model) (increase({selected.good}[{whole}]))", good_ids),
        }
        left = f"sum({increase}:good{{{mine}}} or vector(0)) / sum({increase}{{{mine}}})"
    else:
        of_failed = f'{mine},outcome=~"{"|".join(FAILURES)}"'
        left = f"1 - sum({increase}{{{of_failed}}} or vector(0)) / sum({increase}{{{mine}}})"

    def scaled(window: str) -> str:
        minutes = parse_duration(window) * period / (28 * 86_400) / 60
        return format_duration(max(minutes.to_integral_value(), Decimal(1)) * 60)

    windows = sorted({scaled(w) for a, b, _ in _PYRRA_PAIRS for w in (a, b)}, key=parse_duration)
    exprs = {f"{rate}{window}": selected.ratio(window) for window in windows} | {
        "pyrra_objective": f"vector({TARGET})",
        "pyrra_window": f"vector({period})",
        "pyrra_availability": left,
        "pyrra_requests:rate5m": f"sum(rate({selected.total}[5m]))",
        "pyrra_errors:rate5m": f"{selected.ratio('5m')} * sum(rate({selected.total}[5m]))",
    }

    def burns(window: str, factor: int) -> str:
        return f"{rate}{scaled(window)}{{{mine}}} > ({factor} * {budget})"

    error_ratio = f"1 - pyrra_availability{{{mine}}}"
    return Tool(
        "Pyrra",
        slo,
        whole,
        [
            *(
                RecordingRule(name, expr, labels, every)
                for name, (expr, labels) in increased.items()
            ),
            *(RecordingRule(name, expr, ids, EVERY) for name, expr in exprs.items()),
        ],
        [
            *(
                (f"absent({series}) == 1", every)
                for series in (selected.total, selected.good)
                if series
            ),
            *((f"{burns(a, f)} and {burns(b, f)}", EVERY) for a, b, f in _PYRRA_PAIRS),
        ],
        {window: f"{rate}{window}{{{mine}}}" for window in windows},
        error_ratio,
        # Pyrra's page computes the remaining budget; no rule records it.
        f"({budget} - ({error_ratio})) / {budget}",
    )
