"""Select the current gauges from prometheus_client's multiprocess mode.

Every process that ever set a gauge has a series of its own, with the label ``pid``.  It keeps its
last value after the process ended, for as long as the folder PROMETHEUS_MULTIPROC_DIR is kept.
A process whose gauges have changed since the first scrape is alive.  Several live processes are
frontends of one server (``num_serve_frontends``): they share one engine, and each one has the
engine's state at the last iteration that it fetched.  So the gauges that changed last are current;
their sum would count the engine once per process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from exporter.sources.exposition.text_parser import ParsedFamily

Gauges = Mapping[str, float]
"""Values by the name of the gauge."""


@dataclass(frozen=True, slots=True)
class GaugeWriter:
    """One process: its gauges, the time of their last change, and whether it is alive."""

    gauges: Gauges
    changed: float
    alive: bool = False


Writers = Mapping[str, GaugeWriter]
"""By pid; empty for the only process of an exposition without that label."""


def read(
    families: Mapping[str, ParsedFamily], names: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return the gauges by process; ``names`` maps families to gauge names.

    Unusable values are omitted.
    """
    found: dict[str, dict[str, float]] = {}
    for family, name in names.items():
        for _, labels, value in families[family].samples if family in families else ():
            if 0 <= value < inf:
                found.setdefault(labels.get("pid", ""), {})[name] = value
    return found


def update_writers(
    before: Writers | None, found: Mapping[str, Gauges], now: float
) -> dict[str, GaugeWriter]:
    """Return the state of each process after this scrape; ``before`` is None at the first scrape.

    A process that appears after the first scrape is alive.
    """
    return {
        pid: _updated(before.get(pid) if before else None, gauges, now, new=before is not None)
        for pid, gauges in found.items()
    }


def current(writers: Writers) -> str | None:
    """Return the pid of the live process whose gauges changed last; None if all may be dead."""
    if len(writers) == 1:
        return next(iter(writers))
    alive = [(writer.changed, pid) for pid, writer in writers.items() if writer.alive]
    return max(alive)[1] if alive else None


def _updated(before: GaugeWriter | None, gauges: Gauges, now: float, *, new: bool) -> GaugeWriter:
    if before is None:
        return GaugeWriter(gauges, now, alive=new)
    if before.gauges == gauges:
        return before
    return GaugeWriter(gauges, now, alive=True)
