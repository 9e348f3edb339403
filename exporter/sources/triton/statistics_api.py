"""Parse Triton's statistics API, whose counts are those of the metrics but never frozen.

``GET /v2/models/stats`` counts in nanoseconds, and ``counter_latencies=false`` does not stop it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from exporter.samples import Model
from exporter.sources.triton.request_metrics import Tally


def parse(document: object) -> list[tuple[Model, Tally]]:
    """Parse the response, with the names of the API; entries without usable counts are skipped."""
    found = []
    for entry in _entries(document):
        name, version = entry.get("name"), entry.get("version")
        if not isinstance(name, str) or not isinstance(version, str):
            continue
        ok, ok_ns = _stat(entry, "success")
        fail, _ = _stat(entry, "fail")
        _, queue_ns = _stat(entry, "queue")
        if ok is not None and fail is not None:
            tally = Tally(ok, {"": fail}, _seconds(ok_ns), _seconds(queue_ns))
            found.append(((name, version), tally))
    return found


def tallies(parsed: Sequence[tuple[Model, Tally]], names: Mapping[str, str]) -> dict[Model, Tally]:
    """Return the tallies by model.

    ``names`` maps names in the metrics to names in the API, which has no namespaces: a name that
    two models share is skipped.
    """
    called = _unique(names)
    found: dict[Model, Tally] = {}
    repeated: set[Model] = set()
    for (name, version), tally in parsed:
        model = (called.get(name, name), version)
        if model in found:
            repeated.add(model)
        found[model] = tally
    return {model: tally for model, tally in found.items() if model not in repeated}


def _unique(names: Mapping[str, str]) -> dict[str, str]:
    models = Counter(names.values())
    return {bare: full for full, bare in names.items() if models[bare] == 1}


def _entries(document: object) -> Iterable[Mapping[str, object]]:
    stats = document.get("model_stats") if isinstance(document, dict) else None
    return [one for one in stats if isinstance(one, dict)] if isinstance(stats, list) else []


def _stat(entry: Mapping[str, object], name: str) -> tuple[float | None, float | None]:
    """Return count and nanoseconds of one statistic."""
    stats = entry.get("inference_stats")
    stat = stats.get(name) if isinstance(stats, dict) else None
    if not isinstance(stat, dict):
        return None, None
    return _number(stat.get("count")), _number(stat.get("ns"))


def _number(value: object) -> float | None:
    """Return a count; Triton's gRPC gateway writes 64-bit numbers as strings."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) and number >= 0 else None


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9
