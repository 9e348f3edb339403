"""Registry of the models known to the taps.

Clients may send any name, so only a confirmed name becomes a label.  A name is confirmed if the SLO
file or ``--expect-model`` has it, if the server lists it (``/v1/models``, the repository index), or
if a KServe server responds to it: such a server refuses unknown names.  OpenAI-compatible servers
may echo any name, so their responses confirm nothing.  Every other name becomes ``other``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from exporter.protocol.events import Endpoint
from exporter.recording.label_limiter import OTHER, SeriesBudget
from exporter.recording.model_metrics import ModelMetrics

MAX_MODELS = 256
"""The limit of reported models, each version counted; expected models may exceed it."""
MAX_UNCONFIRMED = 64
MAX_INITIAL_MODELS = 32
"""The limit of models with series before their first request, in addition to expected ones."""
MODEL_SERIES = 400
"""An upper bound of the series of one model: histograms and counters without a tenant."""
CLASS_SERIES = 80
"""An upper bound of the series that a prompt class adds to a model."""
CONFIRMING: frozenset[Endpoint] = frozenset(
    {"generate", "generate_stream", "model_infer", "model_stream_infer"}
)
"""Endpoints of KServe's protocol."""


class ModelRegistry:
    """Map requests to models; ``expected`` names are known from the start.

    ``model_series`` is an upper bound of the series of one model, which each confirmed name takes
    from ``budget``.
    """

    def __init__(
        self,
        new: Callable[[str, str], ModelMetrics],
        expected: Collection[str] = (),
        budget: SeriesBudget | None = None,
        model_series: int = MODEL_SERIES,
    ) -> None:
        self._new = new
        self._model_series = model_series
        self._budget = budget or SeriesBudget()
        self._expected = frozenset(expected)
        self._known = self._expected
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._versions: dict[str, str] = {}
        self._known_count = 0
        for name in expected:
            self._add(name, "", confirmed=True)

    def learn(self, known: Collection[str], reported: Collection[str]) -> None:
        """Replace the names that the server lists.

        Series of ``reported`` ones begin now, those of the others with their first request.
        """
        self._known = self._expected.union(known, reported)
        for name in sorted(reported)[:MAX_INITIAL_MODELS]:
            key = name, self._versions.get(name, "")
            if key in self._models:
                self._models[key].confirmed = True
            elif self._may_report(name):
                self._add(*key, confirmed=True)

    def only(self) -> str:
        """Return the name of the only known model, empty if there are several or none."""
        return next(iter(self._known)) if len(self._known) == 1 else ""

    def expects(self, name: str) -> bool:
        """Return whether the SLO file or ``--expect-model`` has the name."""
        return name in self._expected

    def requested(self, name: str, version: str, endpoint: Endpoint) -> ModelMetrics | None:
        """Return the model of a request; None if too many models are unconfirmed.

        Without a version, it is the version that last responded to such a request.
        """
        usual = self._versions.get(name, "")
        key = name, version or usual
        model = self._models.get(key)
        if model is not None:
            return model
        if name in self._known and key[1] == usual:
            return self._add(*key, confirmed=True) if self._may_report(name) else self._other()
        if endpoint not in CONFIRMING:
            return self._other()
        return self._add(*key, confirmed=False) if self._may_add_unconfirmed() else None

    def confirm(
        self, requested: ModelMetrics, name: str, version: str, endpoint: Endpoint
    ) -> ModelMetrics:
        """Return the model of a response, and confirm its name.

        If only the response has a version, a model that is not reported yet adopts it.
        """
        if requested.name == OTHER or (endpoint not in CONFIRMING and name not in self._known):
            return requested
        model = requested
        if version and (name, version) != (requested.name, requested.version):
            self._versions[name] = version
            fresh = not requested.confirmed and not requested.version
            if name == requested.name and fresh and (name, version) not in self._models:
                del self._models[name, requested.version]
                requested.version = version
                self._models[name, version] = requested
        if (name, version or model.version) != (model.name, model.version):
            model = self.requested(name, version, endpoint) or requested
        if not model.confirmed:
            if not self._budget.take(self._model_series):
                self._models.pop((model.name, model.version), None)
                return self._other()
            model.confirmed = True
        return model

    def reported(self) -> Iterator[ModelMetrics]:
        """Yield the confirmed models; others may be added during the iteration."""
        return (model for model in tuple(self._models.values()) if model.confirmed)

    def _other(self) -> ModelMetrics:
        self._budget.limited["model"] += 1
        return self._models.get((OTHER, "")) or self._add(OTHER, "", confirmed=True)

    def _add(self, name: str, version: str, *, confirmed: bool) -> ModelMetrics:
        model = self._models[name, version] = self._new(name, version)
        model.confirmed = confirmed
        self._known_count += confirmed
        self._link_versions(name)
        return model

    def _link_versions(self, name: str) -> None:
        unversioned = self._models.get((name, ""))
        for model in self._models.values():
            if model.name == name and model.version and unversioned:
                model.unversioned = unversioned
                unversioned.mark_estimated(*model.estimated)

    def _may_report(self, name: str) -> bool:
        return name in self._expected or self._known_count < MAX_MODELS

    def _may_add_unconfirmed(self) -> bool:
        """Return whether another model may be unconfirmed; evict an idle one if needed."""
        unconfirmed = [model for model in self._models.values() if not model.confirmed]
        if len(unconfirmed) < MAX_UNCONFIRMED:
            return True
        idle = next((model for model in unconfirmed if not model.live), None)
        if idle:
            del self._models[idle.name, idle.version]
        return idle is not None
