"""Sum the series of an exposition by (model, version).

One model may have several series of one counter: with and without ``gpu_uuid``, and with a label
``_<key>`` for every metric tag of its configuration.  They are parts of one sum.  With
``--model-namespacing`` Triton's own families carry ``namespace``, backends' families do not; the
namespace then becomes part of the model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan, nan
from operator import itemgetter, le
from typing import TypeVar, cast

from exporter.samples import Distribution, Model
from exporter.sources.exposition.counter_parts import CounterParts, Values
from exporter.sources.exposition.text_parser import ParsedFamily

T = TypeVar("T")

MODEL_LIST_FAMILY = "nv_inference_request_success"
"""The family that lists models and their namespaces: every loaded model has it."""

COUNTERS = ("counter", "histogram", "summary")

VALUE_LIMIT = 2.0**960
"""Values from here on are unusable: sums of several must stay finite."""

Part = tuple[tuple[str, str], ...]
"""The labels of a series, without ``le``."""


@dataclass(frozen=True, slots=True)
class HistogramPart:
    """The indices of one histogram among the samples of its family.

    ``boundaries`` are ascending and end with ``inf``, ``buckets`` returns their counts, and
    ``total`` is the index of the sum.
    """

    part: Part
    boundaries: Values
    buckets: Callable[[list[float]], Values]
    total: int


class FamiliesByModel:
    """The families of one exposition by (model, version), without unusable values.

    ``names`` maps the model names used here to those of Triton's HTTP API.  ``ambiguous``
    are models whose backend's families cannot be distinguished from those of a model of the same
    name in another namespace; they are excluded too.  ``parts`` continues counters of several
    series over partial resets, from scrape to scrape.

    The model of a sample depends on names and labels only, so it is kept in the families' caches.
    """

    def __init__(
        self, families: Mapping[str, ParsedFamily], parts: CounterParts | None = None
    ) -> None:
        self.families = families
        self.parts = parts or CounterParts()
        self._values: dict[str, list[float]] = {}
        self.names: dict[str, str] = {}
        qualified: dict[Model, set[Model]] = {}
        family = families.get(MODEL_LIST_FAMILY)
        for _, labels, _ in family.samples if family else ():
            full = _labelled_model(labels)
            self.names[full[0]] = labels.get("model", "")
            qualified.setdefault((labels.get("model", ""), full[1]), set()).add(full)
        self._qualified = {
            bare: next(iter(full)) for bare, full in qualified.items() if len(full) == 1
        }
        self.ambiguous = {model for full in qualified.values() if len(full) > 1 for model in full}
        self._ambiguous_names = {bare for bare, full in qualified.items() if len(full) > 1}

    def has(self, name: str) -> bool:
        """Return whether the exposition declares the family."""
        return name in self.families

    @property
    def duplicates(self) -> list[str]:
        """Return one duplicate series of every family that has any."""
        return [family.duplicate for family in self.families.values() if family.duplicate]

    def models(self, *names: str) -> set[Model]:
        """Return the models with a sample in any of these families."""
        found: set[Model] = set()
        for name in names:
            if name in self.families:
                found |= self._cached(name, "models", self._find_models)
        return found

    def totals(
        self, name: str, category: str = "", suffix: str = ""
    ) -> dict[Model, dict[str, float]]:
        """Sum a family's samples by model and by the value of the label ``category``.

        ``suffix`` selects ``_count`` or ``_sum`` of a histogram or summary.  A sum with a negative,
        infinite or NaN part is omitted: the rest of it would look like a counter reset.
        """
        family = self.families.get(name)
        if family is None:
            return {}
        counter = family.type in COUNTERS
        values = self._values_of(name)
        indices = self._cached(
            name, ("totals", category, suffix), lambda one: self._find(one, category, suffix)
        )
        found: dict[Model, dict[str, float]] = {}
        for (model, value), parts in indices.items():
            sums = found.setdefault(model, {})
            group = (name, suffix, category, model, value)
            if len(parts) == 1 and not self.parts.continues(group):
                number = values[parts[0][1]]
                if 0 <= number < VALUE_LIMIT:
                    sums[value] = number
                continue
            numbers = {part: (values[index],) for part, index in parts}
            if not all(0 <= number < VALUE_LIMIT for (number,) in numbers.values()):
                continue
            if counter:
                [sums[value]] = self.parts.total(group, numbers)
            else:
                sums[value] = sum(number for (number,) in numbers.values())
        return found

    def total(self, name: str, suffix: str = "") -> dict[Model, float]:
        """Sum a family's samples by model over all other labels."""
        totals = self.totals(name, "", suffix)
        return {model: sums[""] for model, sums in totals.items() if sums}

    def values(self, name: str) -> dict[Model, list[float]]:
        """Return the usable values of a family's samples by model, one per series."""
        if name not in self.families:
            return {}
        values = self._values_of(name)
        indices = self._cached(name, ("totals", "", ""), lambda one: self._find(one, "", ""))
        found = {
            model: [values[index] for _, index in parts if 0 <= values[index] < VALUE_LIMIT]
            for (model, _), parts in indices.items()
        }
        return {model: numbers for model, numbers in found.items() if numbers}

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """Return the labels of a family's samples."""
        family = self.families.get(name)
        return [labels for _, labels, _ in family.samples] if family else []

    def samples(self, name: str) -> Iterator[tuple[Model | None, Mapping[str, str], float]]:
        """Yield model (None without a label), labels and value of a family's samples."""
        family = self.families.get(name)
        for _, labels, value in family.samples if family else ():
            yield self._model_of(labels), labels, value

    def distributions(self, name: str, per_second: float = 1.0) -> dict[Model, Distribution]:
        """Return a histogram's buckets by model; ``per_second`` is 1000 for milliseconds.

        Histograms without a ``+Inf`` bucket, with decreasing buckets or with parts of different
        boundaries are omitted.
        """
        if name not in self.families:
            return {}
        values = self._values_of(name)
        indices = self._cached(name, "histograms", self._find_histograms)
        found = {}
        for model, histograms in indices.items():
            read = [(one.buckets(values), values[one.total]) for one in histograms]
            if not all(_is_histogram(counts, total) for counts, total in read):
                continue
            boundaries = histograms[0].boundaries
            group = (name, model, boundaries)
            counts, total = read[0]
            if len(read) > 1 or self.parts.continues(group):
                of_parts = {
                    one.part: (*counts, total)
                    for one, (counts, total) in zip(histograms, read, strict=True)
                }
                *sums, total = self.parts.total(group, of_parts)
                counts = tuple(sums)
            if per_second != 1.0:
                boundaries = tuple(boundary / per_second for boundary in boundaries)
            found[model] = Distribution(boundaries, counts, total / per_second)
        return found

    def _values_of(self, name: str) -> list[float]:
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = self.families[name].values()
        return values

    def _cached(self, name: str, key: object, find: Callable[[ParsedFamily], T]) -> T:
        family = self.families[name]
        if key not in family.cache:
            family.cache[key] = find(family)
        return cast(T, family.cache[key])

    def _find_models(self, family: ParsedFamily) -> set[Model]:
        return {model for _, labels, _ in family.samples if (model := self._model_of(labels))}

    def _find(
        self, family: ParsedFamily, category: str, suffix: str
    ) -> dict[tuple[Model, str], list[tuple[Part, int]]]:
        """Return the indices of samples by model and label value."""
        found: dict[tuple[Model, str], list[tuple[Part, int]]] = {}
        for index, (sample, labels, _) in enumerate(family.samples):
            model = self._model_of(labels)
            if sample == family.name + suffix and model:
                key = (model, labels.get(category, ""))
                found.setdefault(key, []).append((tuple(sorted(labels.items())), index))
        return found

    def _find_histograms(self, family: ParsedFamily) -> dict[Model, list[HistogramPart]]:
        """Return the histograms of every model whose histograms are well-formed."""
        buckets: dict[Model, dict[Part, dict[float, int]]] = {}
        totals: dict[Part, int] = {}
        for index, (sample, labels, _) in enumerate(family.samples):
            part = tuple(sorted(pair for pair in labels.items() if pair[0] != "le"))
            if sample == f"{family.name}_sum":
                totals[part] = index
            elif sample == f"{family.name}_bucket" and (model := self._model_of(labels)):
                indices = buckets.setdefault(model, {}).setdefault(part, {})
                indices[_boundary(labels.get("le", ""))] = index
        found = {}
        for model, parts in buckets.items():
            boundaries = tuple(sorted(next(iter(parts.values()))))
            if (
                any(map(isnan, boundaries))
                or boundaries[0] < 0
                or boundaries[-1] != inf
                or any(tuple(sorted(indices)) != boundaries for indices in parts.values())
                or any(part not in totals for part in parts)
            ):
                continue
            found[model] = [
                HistogramPart(
                    part, boundaries, _getter([indices[e] for e in boundaries]), totals[part]
                )
                for part, indices in parts.items()
            ]
        return found

    def _model_of(self, labels: Mapping[str, str]) -> Model | None:
        model = _labelled_model(labels)
        if "namespace" in labels or not model[0]:
            return model if model[0] else None
        return None if model in self._ambiguous_names else self._qualified.get(model, model)


def _labelled_model(labels: Mapping[str, str]) -> Model:
    """Return the model in a sample's labels: ``model``, or vLLM's own ``model_name``."""
    name = labels.get("model") or labels.get("model_name", "")
    namespace = labels.get("namespace", "")
    return (f"{namespace}/{name}" if namespace and name else name, labels.get("version", ""))


def _boundary(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _getter(indices: list[int]) -> Callable[[list[float]], Values]:
    if len(indices) == 1:
        [index] = indices
        return lambda values: (values[index],)
    return cast(Callable[[list[float]], Values], itemgetter(*indices))


def _is_histogram(counts: Values, total: float) -> bool:
    """Return whether buckets are cumulative, and count and sum are usable."""
    return (
        counts[0] >= 0
        and all(map(le, counts, counts[1:]))
        and _usable(counts[-1])
        and _usable(total)
    )


def _usable(value: float) -> bool:
    return 0 <= value < VALUE_LIMIT
