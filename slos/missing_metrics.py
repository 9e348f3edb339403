"""Compare SLO files with served metrics: names, labels, and bucket boundaries at thresholds.

A classic histogram answers "how many were within t" exactly only at a bucket boundary.  Without one
at the threshold, an objective has no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import inf

from promql.expr import Matcher, Vector, decimal_text, vector
from slos.durations import format_duration
from slos.errors import Problem
from slos.generic import parsed
from slos.histogram_units import unit_of
from slos.indicators import INDICATORS
from slos.model import Objective, Service
from slos.signals import SIGNALS

Labels = Mapping[str, str]
Served = Mapping[str, Sequence[Labels]]
"""The labels of every series by its name, as one or several servers show them."""


def unserved(service: Service, served: Served) -> Iterator[Problem]:
    """Yield metrics, labels and boundaries that objectives read and no server serves."""
    for index, objective in enumerate(service.objectives):
        for field, message, fix in _missing(objective, service, served):
            where = f"objectives[{index}]" + (f".{field}" if field else "")
            yield Problem(service.file, objective.line, where, message, fix)


_Found = tuple[str, str, str]


def _missing(objective: Objective, service: Service, served: Served) -> Iterator[_Found]:
    histogram = _histogram(objective, service)
    if histogram is not None and service.native(objective):
        return  # expositions in text hold no native histograms
    if histogram is None:
        yield from _absent(objective, service, served)
        return
    every = _selected(histogram, served)
    if not every:
        yield _missing_series(histogram, served, own=bool(objective.queries))
        return
    assert objective.threshold is not None  # noqa: S101  (every histogram has one)
    without = [
        boundaries for boundaries in _boundaries(every) if objective.threshold not in boundaries
    ]
    if without:
        yield "threshold", *_no_boundary(objective, histogram, without)


def _histogram(objective: Objective, service: Service) -> Vector | None:
    """Return the buckets that an objective reads."""
    if "histogram" in objective.queries:
        selector = parsed(objective.queries["histogram"]).selector
        assert selector is not None  # noqa: S101  (read_generic requires it)
        return vector(f"{selector.metric}_bucket", selector.matchers)
    if not objective.queries and INDICATORS[objective.indicator].threshold == "seconds":
        metric = SIGNALS[objective.indicator].metric
        return vector(f"{metric}_bucket", service.selects(objective))
    return None


def _absent(objective: Objective, service: Service, served: Served) -> Iterator[_Found]:
    if objective.queries:
        read = (parsed(text).metrics for text in objective.queries.values())
        # Names with a colon are those of recording rules, which no server has.
        names = sorted(name for name in frozenset().union(*read) if ":" not in name)
        wanted = [Vector(name) for name in names]
    else:
        keys = INDICATORS[objective.indicator].signals
        chosen = service.selects(objective)
        wanted = [vector(SIGNALS[key].metric, {**chosen, **SIGNALS[key].fixed}) for key in keys]
    for selector in wanted:
        if not _selected(selector, served):
            yield _missing_series(selector, served, own=bool(objective.queries))


def _missing_series(selector: Vector, served: Served, *, own: bool) -> _Found:
    others = served.get(selector.metric, ())
    if others:
        shown = ", ".join(
            sorted({_selector_text(labels, selector.matchers) for labels in others})[:3]
        )
        fix = "correct the selector" + ("" if own else ", which is the service's")
        return "", f"selects {selector}, but only {shown} is served", fix
    fix = (
        "correct its name, or give --metrics of the server that has it as well"
        if own
        else "give --metrics of the sidecar; `tokenslo doctor` lists how to get the signal, and "
        "some series come with the first request"
    )
    return "", f"{selector.metric} is not served", fix


def _selector_text(labels: Labels, matchers: Iterable[Matcher]) -> str:
    """Write the served values of a selector's labels."""
    selected = dict.fromkeys(each.label for each in matchers if each.label in labels)
    return "{" + ",".join(f'{label}="{labels[label]}"' for label in selected) + "}"


def _selected(selector: Vector, served: Served) -> list[Labels]:
    return [labels for labels in served.get(selector.metric, ()) if _may_match(labels, selector)]


def _may_match(labels: Labels, selector: Vector) -> bool:
    """Whether a series may match: Prometheus may add labels that it lacks."""
    return all(
        matcher.label not in labels or matcher.accepts(labels[matcher.label])
        for matcher in selector.matchers
    )


def _boundaries(buckets: Iterable[Labels]) -> list[list[Decimal]]:
    """Return the boundaries of each histogram in any spelling."""
    found: dict[tuple[tuple[str, str], ...], list[Decimal]] = {}
    for labels in buckets:
        one = tuple(sorted((name, value) for name, value in labels.items() if name != "le"))
        boundary = _boundary(labels.get("le", ""))
        found.setdefault(one, []).extend([] if boundary is None else [boundary])
    return list(found.values())


def _boundary(text: str) -> Decimal | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return Decimal(repr(value)) if abs(value) < inf else None


def _no_boundary(
    objective: Objective, histogram: Vector, without: Sequence[Sequence[Decimal]]
) -> tuple[str, str]:
    threshold = objective.threshold
    assert threshold is not None  # noqa: S101  (every histogram has one)
    below = max(
        (boundary for boundaries in without for boundary in boundaries if boundary < threshold),
        default=None,
    )
    above = min(
        (boundary for boundaries in without for boundary in boundaries if boundary > threshold),
        default=None,
    )
    unit = unit_of(histogram.metric.removesuffix("_bucket"))

    def text(boundary: Decimal) -> str:
        return decimal_text(boundary) if unit is None else format_duration(boundary / unit)

    near = " and ".join(text(boundary) for boundary in (below, above) if boundary is not None)
    message = (
        f"{text(threshold)} is no bucket boundary of {histogram}; the nearest are {near}"
        if near
        else f"{histogram} has no bucket boundaries"
    )
    if objective.queries:
        return message, "use one of these, or add this boundary to the server's histogram"
    return message, (
        "start the sidecar with --slo and this file, which adds the boundary where the sidecar "
        "measures; where the histogram is the server's own, use one of its boundaries"
    )
