"""Plans of services from the series that their rules record in Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from diagnosis.check_results import Query
from promql.client import Sample
from promql.expr import equal, selector_text
from promql.parse import parse
from promql.tree import Vector
from slos import names
from slos.durations import parse_duration, parse_share
from slos.indicators import INDICATORS
from slos.model import Objective, Service
from slos.plan import Plan, plan


class RecordedRulesError(ValueError):
    """The recorded series do not describe a service; the text has the fix."""


def recorded_plans(query: Query) -> tuple[Plan, ...]:
    """Return the plans of all services whose rules Prometheus evaluates.

    A plan from series has no runbook URL, no labels and the default windows.  Raises
    RecordedRulesError and PrometheusError.
    """
    objectives: dict[str, dict[str, Sample]] = {}
    for sample in query(names.TARGET):
        labels = sample.labels
        if "service" in labels and "slo" in labels:
            objectives.setdefault(labels["service"], {})[labels["slo"]] = sample
    if not objectives:
        raise RecordedRulesError(
            f"Prometheus has no {names.TARGET}. Fix: load the rules of `tokenslo generate`, or "
            "give the SLO file with --slo"
        )
    return tuple(plan(_service(name, found)) for name, found in sorted(objectives.items()))


def _service(name: str, recorded: Mapping[str, Sample]) -> Service:
    try:
        found = tuple(_objective(name, key, each) for key, each in sorted(recorded.items()))
        window = next(iter(recorded.values())).labels.get("window", "28d")
        return Service("Prometheus", name, parse_duration(window), found, selector=_common(found))
    except (KeyError, ValueError, InvalidOperation) as error:
        raise RecordedRulesError(
            f"{names.TARGET} of the service {name} has no valid label "
            f"{error.args[0] if isinstance(error, KeyError) else str(error)!r}. Fix: generate the "
            "rules again with this version, or give the SLO file with --slo"
        ) from None


def _objective(service: str, name: str, recorded: Sample) -> Objective:
    labels = recorded.labels
    indicator, target = labels["indicator"], Decimal(repr(recorded.value))
    selector = _selector(labels[names.SELECTOR_LABEL])
    native = labels.get(names.HISTOGRAMS_LABEL, "")
    if indicator not in INDICATORS:
        of = selector_text("", equal(names.series_labels(service, name)))
        queries = {"bad": f"sum({names.BAD}{of})", "total": f"sum({names.TOTAL}{of})"}
        return Objective(name, "bad_events", target, queries=queries)
    unit = INDICATORS[indicator].threshold
    text = labels.get("threshold", "")
    read = parse_share if unit == "ratio" else parse_duration
    return Objective(
        name,
        indicator,
        target,
        read(text) if unit else None,
        clauses=_clauses(text) if indicator == "goodput" else {},
        selector=selector,
        histograms=native,
    )


def _clauses(text: str) -> dict[str, Decimal]:
    """Read clauses as :func:`slos.indicators.threshold_text` writes them."""
    pairs = (part.split(" ", 1) for part in text.split(", ") if part)
    return {name: parse_duration(threshold) for name, threshold in pairs}


def _selector(text: str) -> dict[str, str]:
    """Read a selector such as ``{model="llama"}``."""
    found = parse(f"x{text}")
    if not isinstance(found, Vector) or any(each.op != "=" for each in found.matchers):
        raise ValueError("selector")
    return {each.label: str(each.value) for each in found.matchers}


def _common(objectives: tuple[Objective, ...]) -> dict[str, str]:
    """Return the labels that all objectives on signals select."""
    selectors = [{*each.selector.items()} for each in objectives if not each.queries]
    return dict(sorted(set.intersection(*selectors))) if selectors else {}
