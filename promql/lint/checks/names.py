"""Check names of metrics and labels, and label values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from promql.lint.catalogue import Metric, Part, nearest
from promql.lint.context import LintContext, alternatives
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.matchers import Matcher, Template
from promql.tree import Aggregate, Binary, Call, Expr, Vector, walk

# Labels that targets often have as well, so a matcher of them is not checked.
_ALSO_OF_TARGETS = frozenset(
    {
        "backend", "clause", "engine", "kind", "layer", "method", "namespace", "objective", "pid",
        "quality", "rank", "reason", "result", "signal", "source", "stage", "state", "tap",
        "tenant", "version",
    }
)  # fmt: skip
_EITHER_SPELLING = re.compile(r"([0-9]+)\((?:\\\.|\[\.\])0\)\?")
_WHOLE = re.compile(r"[0-9]{1,9}(\.0)?")


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield unknown metrics, labels, label values and bucket boundaries."""
    for node, around in walk(root):
        if not isinstance(node, Vector) or not node.name or node.name in context.recorded:
            continue
        yield from _name(node, context)
        found = context.metric(node)
        if found:
            yield from _labels(node, around, found, context)
            yield from _values(node, found[0])
            yield from _boundaries(node, found)


def _name(node: Vector, context: LintContext) -> Iterator[Hit]:
    name = node.name
    emitted = context.emitted or context.known
    if rename := emitted.rename_of(name):
        why = f"{name} is not emitted by {emitted.title}: {rename.why}"
        yield Hit("TL002", node, why, f"write {rename.now}")
    elif found := emitted.find(name):
        if found[0].caution:
            why = f"{name} misleads here: {found[0].caution}"
            yield Hit("TL007", node, why, "measure the queue in the engine or in its clients")
    elif context.known.covers(name):
        near = nearest(name, tuple(emitted.series))
        fix = f"write {near} if you mean that" if near else "leave it out"
        if name.startswith(emitted.partial):
            why = f"{name} is in no catalogue; releases without a catalogue may have it"
            fix = f"{fix}, or give your release by --catalogue or --metrics"
            yield Hit("TL002", node, why, fix, "note")
        elif not name.startswith(emitted.vague):
            yield Hit("TL002", node, f"{name} is not emitted by {emitted.title}", fix)


def _labels(
    node: Vector, around: tuple[Expr, ...], found: tuple[Metric, Part], context: LintContext
) -> Iterator[Hit]:
    metric, part = found
    if metric.labels is None or not context.known.find(node.name):
        return
    own = metric.labels - ({"le"} if part != "bucket" else set())
    if part in ("sum", "count"):
        own -= {"quantile"}
    elsewhere = context.vocabulary - _ALSO_OF_TARGETS
    used = {matcher.label for matcher in node.matchers}
    for label in sorted((used & elsewhere) - own):
        yield _no_label(node, node, label, own)
    for outer in reversed(around):
        if isinstance(outer, Binary | Call) and not _keeps_labels(outer):
            return
        if isinstance(outer, Aggregate) and not outer.without:
            for label in sorted(((outer.labels or frozenset()) & elsewhere) - own):
                yield _no_label(outer, node, label, own)


def _keeps_labels(outer: Binary | Call) -> bool:
    if isinstance(outer, Call):
        templated = isinstance(outer.function, Template)
        return not templated and outer.function not in ("label_replace", "label_join", "info")
    return not outer.matching and outer.op not in ("or", "and", "unless")


def _no_label(part: Expr, node: Vector, label: str, own: frozenset[str]) -> Hit:
    near = {"model": "model_name", "model_name": "model"}.get(label, "")
    if near not in own:
        near = nearest(label, tuple(sorted(own)))
    effect = "selects nothing" if part is node else "merges series that it should keep separate"
    has = f"its labels are {', '.join(sorted(own))}" if own else "it has no labels of its own"
    fix = f"write {near}" if near else f"leave out {label}"
    return Hit("TL003", part, f"{node.name} has no label {label}, so this {effect}; {has}", fix)


def _values(node: Vector, metric: Metric) -> Iterator[Hit]:
    for matcher in node.matchers:
        possible = metric.values.get(matcher.label)
        values = alternatives(matcher)
        if not possible or not values or possible & {*values} or "" in values:
            continue
        near = nearest(values[0], tuple(sorted(possible)))
        why = f"{matcher.label} of {metric.name} is never {' or '.join(values)}"
        fix = f"write {near}" if near else f"take one of {', '.join(sorted(possible))}"
        yield Hit("TL004", node, why, fix)


def _boundaries(node: Vector, found: tuple[Metric, Part]) -> Iterator[Hit]:
    metric, part = found
    if part != "bucket":
        return
    for matcher in node.matchers:
        if matcher.label == "le" and matcher.op in ("=", "=~") and matcher.known_value is not None:
            yield from _boundary(node, matcher, metric)


def _boundary(node: Vector, matcher: Matcher, metric: Metric) -> Iterator[Hit]:
    either = _EITHER_SPELLING.fullmatch(matcher.value)
    spellings = (either[1], f"{either[1]}.0") if either else alternatives(matcher) or ()
    values = {value for each in spellings if (value := _number(each)) is not None}
    if metric.boundaries:
        for value in sorted(values - {*metric.boundaries, float("inf")}):
            below = max(
                (boundary for boundary in metric.boundaries if boundary < value), default=None
            )
            above = min(
                (boundary for boundary in metric.boundaries if boundary > value), default=None
            )
            near = " and ".join(
                f"{boundary:g}" for boundary in (below, above) if boundary is not None
            )
            if metric.boundaries_from:
                why = f"{value:g} is not a default bucket boundary of {metric.name}"
                fix = (
                    f"set it by {metric.boundaries_from}, or use a default: the nearest are {near}"
                )
                yield Hit("TL005", node, why, fix, "note")
            else:
                why = f"{metric.name} has no bucket boundary {value:g}, so this selects nothing"
                yield Hit("TL005", node, why, f"use one of its boundaries: the nearest are {near}")
            return
    for each in spellings:
        if not _WHOLE.fullmatch(each):
            continue
        whole = each.removesuffix(".0")
        if {whole, f"{whole}.0"} <= {*spellings}:
            continue
        if each == whole:
            stored = f'le="{whole}.0"'
            why = f"Prometheus 3 stores the boundary {whole} as {stored}, so this selects nothing"
        elif metric.whole_boundaries == "1":
            why = f'Prometheus 2 stores the boundary as the server writes it, le="{whole}"'
        else:
            continue
        yield Hit("TL006", node, why, f'write le=~"{whole}(\\\\.0)?"')


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
