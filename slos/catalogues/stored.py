"""Load the catalogues that ``tools/catalogues`` read from the servers' source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from promql.lint.catalogue import Kind, Metric, Unit, unit_of

_KINDS: Mapping[str, Kind] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "summary": "summary",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """One data file: the metrics of a release, and the commit they were read from.

    ``since`` is the first release of metrics that older releases lack, where it is known.
    """

    release: str
    commit: str
    metrics: Mapping[str, Metric]
    since: Mapping[str, str]


@lru_cache
def stored(server: str) -> Stored:
    """Return the data file of a server, such as ``vllm``."""
    text = (Path(__file__).parent / f"data/{server}.json").read_text("utf-8")
    data = json.loads(text)
    families = data["families"]
    return Stored(
        data["release"],
        data["commit"],
        {each["name"]: _metric(each) for each in families},
        {each["name"]: each["since"] for each in families if "since" in each},
    )


def release_of(known: Stored) -> str:
    """Return the release that a catalogue is named after: without the patch."""
    return ".".join(known.release.split(".")[:2])


def _metric(family: Mapping[str, object]) -> Metric:
    name, kind = str(family["name"]), str(family["kind"])
    labels, buckets = family.get("labels"), family.get("buckets")
    info = name.endswith("_info")  # what it says is in its labels
    known = frozenset(map(str, labels)) if isinstance(labels, list) and not info else None
    if known is not None and kind == "histogram":
        known |= {"le"}
    return Metric(
        name,
        "untyped" if info else _KINDS[kind],
        known,
        unit=_unit(name),
        boundaries=tuple(map(float, buckets)) if isinstance(buckets, list) else (),
        whole_boundaries="1.0" if kind == "histogram" else "",  # prometheus_client's
    )


def _unit(name: str) -> Unit:
    name = name.removesuffix("_total")
    return "ratio" if name.endswith("_perc") else unit_of(name)
