"""Report prompt classes as unavailable for models whose requests no tap sees."""

from __future__ import annotations

from dataclasses import replace

from exporter.samples import Snapshot
from exporter.sources.unavailable import OBSERVE, Unavailable
from slos.signals import PROMPT_CLASS_SIGNALS

UNCLASSIFIED = Unavailable(
    "metrics of a server do not show the prompts of single requests, so its requests have no "
    "prompt class",
    OBSERVE,
    never=True,
)
LENGTHS = Unavailable(
    "this server publishes no histogram of the lengths of prompts or responses", OBSERVE, never=True
)
_WHY = {
    signal: UNCLASSIFIED if signal == "prompt_class" else LENGTHS for signal in PROMPT_CLASS_SIGNALS
}


def with_unclassified(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the reason for each measured model without prompt classes."""
    measured = {(one.model, one.version, one.signal) for one in snapshot.measurements}
    models = dict.fromkeys((one.model, one.version) for one in snapshot.measurements)
    missing = (
        why.missing(signal, model)
        for model in models
        for signal, why in _WHY.items()
        if (*model, signal) not in measured
    )
    return replace(snapshot, missing=(*snapshot.missing, *missing))
