"""An exposition seen by model: what Triton and its backends publish, summed to (model, version).

One model may have several series of one counter: with and without ``gpu_uuid``, and with a label
``_<key>`` for every metric tag of its configuration.  They are parts of one number.  With
``--model-namespacing`` Triton's own families carry ``namespace``, backends' families do not; the
namespace then becomes part of the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, isnan, nan

from exporter.reader import Family
from exporter.readings import Distribution, Model

NAMED_BY = "nv_inference_request_success"
"""The family from which models and their namespaces are learnt: every loaded model has it."""


class ByModel:
    """The families of one exposition by (model, version); unusable values are left out.

    ``names`` maps the model names used here to those that Triton's HTTP API knows.  ``ambiguous``
    are models whose backend's families cannot be told from those of a model of the same name in
    another namespace; they are left out too.
    """

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self.names: dict[str, str] = {}
        homes: dict[Model, set[Model]] = {}
        family = families.get(NAMED_BY)
        for _, labels, _ in family.samples if family else ():
            full = _model(labels)
            self.names[full[0]] = labels.get("model", "")
            homes.setdefault((labels.get("model", ""), full[1]), set()).add(full)
        self._homes = {bare: next(iter(full)) for bare, full in homes.items() if len(full) == 1}
        self.ambiguous = {model for full in homes.values() if len(full) > 1 for model in full}
        self._nobodys = {bare for bare, full in homes.items() if len(full) > 1}

    def has(self, name: str) -> bool:
        """Tell whether the exposition declares the family."""
        return name in self._families

    def models(self, *names: str) -> set[Model]:
        """Return the models with a sample in any of these families."""
        return {
            model
            for name in names
            if name in self._families
            for _, labels, _ in self._families[name].samples
            if (model := self._home(labels))
        }

    def totals(
        self, name: str, category: str = "", suffix: str = ""
    ) -> dict[Model, dict[str, float]]:
        """Sum a family's samples by model and by the value of the label ``category``.

        ``suffix`` selects ``_count`` or ``_sum`` of a histogram or summary.  A sum with a negative,
        infinite or NaN part is left out: the rest of it would look like a counter reset.
        """
        found: dict[Model, dict[str, float]] = {}
        for sample, labels, value in self._samples(name):
            model = self._home(labels)
            if sample == name + suffix and model:
                sums = found.setdefault(model, {})
                word = labels.get(category, "")
                sums[word] = sums.get(word, 0.0) + _usable(value)
        return {
            model: kept
            for model, sums in found.items()
            if (kept := {word: total for word, total in sums.items() if isfinite(total)})
        }

    def total(self, name: str, suffix: str = "") -> dict[Model, float]:
        """Sum a family's samples by model, whatever their other labels."""
        return {model: sums[""] for model, sums in self.totals(name, "", suffix).items()}

    def values(self, name: str) -> dict[Model, list[float]]:
        """Return the usable values of a family's samples by model, one per series."""
        found: dict[Model, list[float]] = {}
        for sample, labels, value in self._samples(name):
            model = self._home(labels)
            if sample == name and model and isfinite(_usable(value)):
                found.setdefault(model, []).append(value)
        return found

    def distributions(self, name: str, per_second: float = 1.0) -> dict[Model, Distribution]:
        """Return a histogram's buckets by model; ``per_second`` is 1000 for milliseconds.

        Left out are histograms without a ``+Inf`` bucket, with negative edges or buckets that
        fall, or whose parts have different edges.
        """
        parts: dict[Model, dict[tuple[tuple[str, str], ...], dict[float, float]]] = {}
        for sample, labels, value in self._samples(name):
            model = self._home(labels)
            if sample == f"{name}_bucket" and model:
                part = tuple(sorted((key, word) for key, word in labels.items() if key != "le"))
                edge = _edge(labels.get("le", ""))
                parts.setdefault(model, {}).setdefault(part, {})[edge] = _usable(value)
        sums = self.total(name, "_sum")
        found = {}
        for model, buckets in parts.items():
            distribution = _add_up(list(buckets.values()), sums.get(model), per_second)
            if distribution:
                found[model] = distribution
        return found

    def _samples(self, name: str) -> list[tuple[str, Mapping[str, str], float]]:
        family = self._families.get(name)
        return family.samples if family else []

    def _home(self, labels: Mapping[str, str]) -> Model | None:
        model = _model(labels)
        if "namespace" in labels or not model[0]:
            return model if model[0] else None
        return None if model in self._nobodys else self._homes.get(model, model)


def _model(labels: Mapping[str, str]) -> Model:
    """Return the model of a sample; vLLM itself says ``model_name`` where its backend does not."""
    name = labels.get("model") or labels.get("model_name", "")
    namespace = labels.get("namespace", "")
    return (f"{namespace}/{name}" if namespace and name else name, labels.get("version", ""))


def _usable(value: float) -> float:
    return value if value >= 0 else inf


def _edge(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _add_up(
    parts: list[dict[float, float]], total: float | None, per_second: float
) -> Distribution | None:
    edges = sorted(parts[0])
    if (
        total is None
        or any(map(isnan, edges))
        or edges[-1:] != [inf]
        or edges[0] < 0
        or any(sorted(part) != edges for part in parts)
    ):
        return None
    counts = [sum(part[edge] for part in parts) for edge in edges]
    if not all(map(isfinite, counts)) or counts != sorted(counts):
        return None
    return Distribution(
        tuple(edge / per_second for edge in edges), tuple(counts), total / per_second
    )
