"""Read the objects that scale workloads: KEDA, HorizontalPodAutoscalers, prometheus-adapter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from promql.lint.located_text import LocatedText, Value
from promql.lint.values import at, list_of

ScalerKind = Literal["ScaledObject", "HorizontalPodAutoscaler"]
Path = tuple[str | int, ...]
_SELF = "<<.Series>>"
LABEL_MATCHERS = "<<.LabelMatchers>>"
_TEMPLATES = {"<<.GroupBy>>": "pod", "<<.LabelValuesByName>>": ""}
_FALSE = ("0", "f", "false")


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """The settings of a trigger of KEDA; ``threshold`` is None if it is not a number."""

    threshold: float | None
    metric_type: str
    ignores_null: bool


@dataclass(frozen=True, slots=True)
class ScalerQuery:
    """The query of a trigger or of an adapter's rule, with its place below the object.

    ``unselective``: an adapter's rule without the matchers of the requested object.
    """

    text: LocatedText
    name: str
    place: str
    path: Path
    settings: TriggerSettings | None = None
    unselective: bool = False


@dataclass(frozen=True, slots=True)
class Scaler:
    """An object that scales a workload on custom metrics.

    ``metrics`` are the names of an autoscaler's metrics, with their paths.  ``stabilization`` is
    the text of the window of scale-down, empty without one.
    """

    kind: ScalerKind
    name: LocatedText
    path: Path
    has_fallback: bool
    stabilization: str
    metrics: tuple[tuple[LocatedText, Path], ...] = ()


def scaler(value: Value) -> Scaler | None:
    """Return the scaler of a manifest; None for other manifests, and without custom metrics."""
    kind, spec = at(value, "kind"), at(value, "spec")
    name = at(value, "metadata", "name")
    name = name if isinstance(name, LocatedText) else LocatedText("?", 1)
    if kind == "ScaledObject" and any(map(_is_prometheus, list_of(at(spec, "triggers")))):
        where = ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleDown")
        fallback = isinstance(at(spec, "fallback"), dict)
        return Scaler(kind, name, ("spec",), fallback, _window(at(value, *where)))
    if kind == "HorizontalPodAutoscaler" and (metrics := tuple(_metrics(spec))):
        window = _window(at(spec, "behavior", "scaleDown"))
        return Scaler(kind, name, ("spec",), True, window, metrics)
    return None


def trigger_queries(value: Value) -> Iterator[ScalerQuery]:
    """Yield the queries of the triggers of a ScaledObject or ScaledJob."""
    name = text(at(value, "metadata", "name"))
    for index, trigger in enumerate(list_of(at(value, "spec", "triggers"))):
        metadata = at(trigger, "metadata")
        query = at(metadata, "query")
        if not _is_prometheus(trigger) or not isinstance(query, LocatedText):
            continue
        settings = TriggerSettings(
            _number(text(at(metadata, "threshold"))),
            text(at(trigger, "metricType")) or "AverageValue",
            text(at(metadata, "ignoreNullValues")).lower() not in _FALSE,
        )
        path = ("spec", "triggers", index, "metadata", "query")
        yield ScalerQuery(query, name, f"scaler {name}, trigger {index}", path, settings)


def adapter_queries(value: Value) -> Iterator[ScalerQuery]:
    """Yield the queries of prometheus-adapter's configuration, also in values of its Helm chart."""
    rules = at(value, "rules")
    lists = {
        ("rules",): rules,
        ("externalRules",): at(value, "externalRules"),
        ("rules", "custom"): at(rules, "custom"),
        ("rules", "external"): at(rules, "external"),
    }
    for where, found in lists.items():
        for index, rule in enumerate(list_of(found)):
            query, series = at(rule, "metricsQuery"), text(at(rule, "seriesQuery"))
            if isinstance(query, LocatedText) and series:
                name = text(at(rule, "name", "as")) or series
                yield ScalerQuery(
                    LocatedText(_filled(query, series), query.line, query.block),
                    name,
                    f"adapter rule {name}",
                    (*where, index, "metricsQuery"),
                    unselective=LABEL_MATCHERS not in query,
                )


def _filled(query: str, series: str) -> str:
    """Return a query of the adapter for the series of its rule and one pod."""
    metric = series.partition("{")[0]
    filled = query.replace(_SELF, metric).replace(LABEL_MATCHERS, 'pod="x"')
    for template, value in _TEMPLATES.items():
        filled = filled.replace(template, value)
    return filled


def text(value: Value) -> str:
    """Return a scalar as text, empty for None and for others."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else "�" for c in value)[:80]
    return str(value) if isinstance(value, int | float) else ""


def _is_prometheus(trigger: Value) -> bool:
    return text(at(trigger, "type")) == "prometheus"


def _number(text_: str) -> float | None:
    try:
        return float(text_)
    except ValueError:
        return None


def _window(scale_down: Value) -> str:
    return text(at(scale_down, "stabilizationWindowSeconds"))


def _metrics(spec: Value) -> Iterator[tuple[LocatedText, Path]]:
    for index, metric in enumerate(list_of(at(spec, "metrics"))):
        for key in ("pods", "object", "external"):
            name = at(metric, key, "metric", "name")
            if isinstance(name, LocatedText):
                yield name, ("spec", "metrics", index, key, "metric", "name")
