"""Readiness of servers and models by layer, with reasons.

Layers fail separately: a server may respond without a model, a loaded model may not decode, and a
running sidecar may scrape nothing.  A layer in an unknown state does not make a server unready:
removing it from traffic would be an outage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from exporter.families import LabelSet, MetricFamily, own_family
from exporter.samples import Model, ModelInfo
from exporter.settings import ExpectedModel
from exporter.sources.probe import ProbeState
from exporter.store.decode_progress import Decoding
from exporter.store.view import SourceState, View

MAX_LABEL_SETS = 4_096
"""Maximum cached label sets: three layers of each model, and the sources."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The readiness of a source or a model in one respect; ``ready`` is None if unknown.

    ``reason`` explains why it is not ready or unknown, or what to watch.
    """

    layer: str
    name: str
    ready: bool | None
    reason: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Every layer; the whole is ready unless a layer is known to be unready."""

    layers: tuple[Layer, ...]

    @property
    def ready(self) -> bool:
        """Whether no layer is known to be unready."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the unready layers."""
        return tuple(layer.reason for layer in self.layers if layer.ready is False)


@dataclass(frozen=True, slots=True)
class ReadinessInputs:
    """Input beside a view: the expected models, their decode progress and their probes.

    ``probes`` are by model.
    """

    expected: Iterable[ExpectedModel] = ()
    decoding: Mapping[Model, Decoding] = field(default_factory=dict)
    probes: Mapping[str, ProbeState] = field(default_factory=dict)


_NOTHING = ReadinessInputs()


def readiness(view: View, unready_after: float, watched: ReadinessInputs = _NOTHING) -> Readiness:
    """Evaluate a view: a source is ready if scraped in the last ``unready_after`` seconds.

    Parts of a source (``triton/statistics``) are not layers: without one some signals are
    unavailable, but the server serves.  Neither are excluded models, unless they are expected.
    """
    layers = (
        Layer("process", "tokenslo", ready=True),
        *_sources(view, unready_after),
        *_models(view, watched.expected),
        *_engines(view, watched.decoding),
        *(
            Layer("probe", model, probed.ready, probed.reason)
            for model, probed in watched.probes.items()
        ),
    )
    return Readiness(layers)


def family(readiness: Readiness) -> MetricFamily:
    """Return every layer in a known state as a gauge."""
    return own_family(
        "tokenslo_ready",
        [
            (_labels(layer.layer, layer.name, layer.version), float(layer.ready))
            for layer in readiness.layers
            if layer.ready is not None
        ],
    )


@lru_cache(maxsize=MAX_LABEL_SETS)
def _labels(layer: str, name: str, version: str) -> LabelSet:
    about = {"process": "", "source": "source", "server": "source"}.get(layer, "model")
    labels = {"layer": layer, "source": "", "model": "", "version": version}
    return LabelSet(labels | ({about: name} if about else {}))


def _sources(view: View, unready_after: float) -> Iterator[Layer]:
    sources = [source for source in view.sources if "/" not in source.source]
    if not sources:
        yield Layer("source", "", ready=False, reason="no source has been scraped yet")
    for source in sources:
        yield _freshness(source, unready_after)
    for source in sources:
        if source.ready is not None:
            reason = (
                "" if source.ready else f"the server {source.source} reports that it is not ready"
            )
            yield Layer("server", source.source, source.ready, reason)


def _freshness(source: SourceState, unready_after: float) -> Layer:
    if source.age is None:
        reason = f"source {source.source} has not been scraped yet"
    elif source.age > unready_after:
        reason = f"source {source.source} was last scraped {source.age:.1f} s ago"
    else:
        return Layer("source", source.source, ready=True)
    why = f": {source.error}" if source.error else ""
    return Layer("source", source.source, ready=False, reason=reason + why)


def _models(view: View, expected: Iterable[ExpectedModel]) -> Iterator[Layer]:
    listed = set()
    for info in view.models:
        if not info.excluded:
            listed.add((info.model, info.version))
            yield _loaded(info)
    for wanted in expected:
        found = [
            info
            for info in view.models
            if info.model == wanted.name and wanted.version in ("", info.version)
        ]
        best = max(found, key=lambda info: info.ready, default=None)
        if best and (best.model, best.version) in listed:
            continue
        yield _loaded(best) if best else _absent(wanted, view)


def _loaded(info: ModelInfo) -> Layer:
    why = f": {info.reason}" if info.reason else ""
    reason = "" if info.ready else f"model {info.model} is not ready{why}"
    return Layer("model", info.model, info.ready, reason, info.version)


def _absent(wanted: ExpectedModel, view: View) -> Layer:
    what = f"model {wanted.name}" + (f", version {wanted.version}," if wanted.version else "")
    if not view.models:
        return Layer("model", wanted.name, None, "no recent model list", wanted.version)
    return Layer("model", wanted.name, False, f"{what} is not on the server", wanted.version)


def _engines(view: View, decoding: Mapping[Model, Decoding]) -> Iterator[Layer]:
    for info in view.models:
        known = decoding.get((info.model, info.version))
        if known:
            why = (
                ""
                if known.initialised
                else "it has published no iteration and produced no token yet"
            )
            yield Layer("backend", info.model, known.initialised, why, info.version)
            reason = f"{info.model}: {known.reason}" if known.reason else ""
            yield Layer("decode", info.model, known.progressing, reason, info.version)
