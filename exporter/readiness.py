"""Whether what the sidecar watches can serve, layer by layer, and why not.

The layers are separate because they fail separately: a server that answers may have no model, and a
sidecar that runs may read nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.view import SourceState, View


@dataclass(frozen=True, slots=True)
class Layer:
    """One thing that must hold; ``reason`` says why it does not."""

    layer: str
    name: str
    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Every layer, and whether all of them hold."""

    layers: tuple[Layer, ...]

    @property
    def ready(self) -> bool:
        """Whether every layer is ready."""
        return all(layer.ready for layer in self.layers)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What stands in the way, one text each."""
        return tuple(layer.reason for layer in self.layers if not layer.ready)


def readiness(view: View, stale_after: float) -> Readiness:
    """Judge a view; a source whose last good reading is older than ``stale_after`` s is not ready.

    Parts of a source (``triton/statistics``) are not layers: without one some signals are missing,
    and the server serves all the same.  Neither are models that are not reported on.
    """
    return Readiness((Layer("process", "tokenslo", ready=True), *_layers(view, stale_after)))


def _layers(view: View, stale_after: float) -> Iterator[Layer]:
    sources = [source for source in view.sources if "/" not in source.source]
    if not sources:
        yield Layer("source", "", ready=False, reason="nothing has been read yet")
    for source in sources:
        yield _freshness(source, stale_after)
    for source in sources:
        if source.ready is not None:
            reason = "" if source.ready else f"the server {source.source} says it is not ready"
            yield Layer("server", source.source, source.ready, reason)
    for model in view.models:
        if not model.excluded:
            why = f": {model.reason}" if model.reason else ""
            reason = "" if model.ready else f"model {model.model} is not ready{why}"
            yield Layer("model", model.model, model.ready, reason)


def _freshness(source: SourceState, stale_after: float) -> Layer:
    if source.age is None:
        reason = f"source {source.source} has not been read yet"
    elif source.age > stale_after:
        reason = f"source {source.source} was last read {source.age:.1f} s ago"
    else:
        return Layer("source", source.source, ready=True)
    why = f": {source.error}" if source.error else ""
    return Layer("source", source.source, ready=False, reason=reason + why)
