"""Made-up traffic as promtool's input series: what the sidecar would report in a given story."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from promql.expr import decimal_text, vector
from slos.plan import PlannedObjective
from slos.signals import SIGNALS

STEP = Decimal(30)
"""Seconds between two samples of every input series."""

_SEATS = Decimal(10)


@dataclass(frozen=True, slots=True)
class Phase:
    """So many ``events`` in each step for ``seconds``, the share ``bad`` of them bad.

    ``events`` of ``None`` means that nothing is reported, as when the sidecar is gone.
    """

    seconds: Decimal
    events: Decimal | None
    bad: Decimal = Decimal(0)

    @property
    def steps(self) -> int:
        """How many samples each series has in it."""
        return int(self.seconds / STEP)


@dataclass(frozen=True, slots=True)
class Input:
    """One series: a counter's increase for each good and each bad event, or a gauge's values."""

    series: str
    gauge: bool
    good: Decimal
    bad: Decimal


def inputs(planned: PlannedObjective, selector: Mapping[str, str]) -> Iterator[Input]:
    """Yield the series that an objective is measured by."""
    objective = planned.objective
    none, one = Decimal(0), Decimal(1)

    def made(metric: str, good: Decimal, bad: Decimal, **labels: str) -> Input:
        series = str(vector(metric, {**selector, **labels}))
        return Input(series, planned.indicator.in_slices, good, bad)

    match objective.indicator:
        case "availability":
            requests = SIGNALS["requests"].metric
            yield made(requests, one, none, outcome="ok", reason="")
            yield made(requests, none, one, outcome="error", reason="internal")
        case "kv_headroom":
            yield made(SIGNALS["kv_utilization"].metric, none, one)
        case "sequence_headroom":
            active = SIGNALS["sequences_active"]
            yield made(active.metric, none, _SEATS, **active.fixed)
            yield made(SIGNALS["sequences_max"].metric, _SEATS, _SEATS)
        case _:
            assert objective.threshold is not None  # noqa: S101  (the others are latencies)
            metric = SIGNALS[objective.indicator].metric
            edge = decimal_text(objective.threshold)
            yield made(f"{metric}_bucket", one, none, le=edge)
            yield made(f"{metric}_count", one, one)


def values(series: Input, phases: Iterable[Phase]) -> str:
    """Write a series in promtool's notation, from a first sample before the first phase on."""
    value = series.good if series.gauge else Decimal(0)
    words = [decimal_text(value)]
    for phase in phases:
        more = phase.steps - 1
        if phase.events is None:
            words.append(f"stale _x{more}")
            continue
        if series.gauge:
            value, rise = (series.bad if phase.bad else series.good), Decimal(0)
        else:
            rise = phase.events * (phase.bad * series.bad + (1 - phase.bad) * series.good)
            value += rise
        words.append(f"{decimal_text(value)}+{decimal_text(rise)}x{more}")
        value += rise * more
    return " ".join(words)
