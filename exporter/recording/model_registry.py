"""Models known to the taps: the server names them, not the client.

A client may write any name.  A name is a label if the SLO file or ``--expect-model`` has it, if the
server lists it (``/v1/models``, the repository index), or if a server that speaks KServe's protocol
answers for it: such a server refuses names that it does not have.  OpenAI-compatible servers may
echo whatever name a request has, so their answers prove nothing, and every other name is ``other``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from exporter.protocol.events import Endpoint
from exporter.recording.label_limiter import OTHER, SeriesBudget
from exporter.recording.model_metrics import ModelMetrics

MAX_MODELS = 256
"""Models that are reported on, versions counted; those that are expected may be more."""
MAX_UNPROVEN = 64
MAX_BEGUN = 32
"""Models whose series begin before their first request, beside those that are expected."""
MODEL_SERIES = 400
"""Series of one model, amply: its histograms and the counters without a tenant."""
PROVING: frozenset[Endpoint] = frozenset(
    {"generate", "generate_stream", "model_infer", "model_stream_infer"}
)
"""Endpoints of KServe's protocol."""


class ModelRegistry:
    """The models that requests are for; ``expected`` names are known from the start."""

    def __init__(
        self,
        new: Callable[[str, str], ModelMetrics],
        expected: Collection[str] = (),
        budget: SeriesBudget | None = None,
    ) -> None:
        self._new = new
        self._budget = budget or SeriesBudget()
        self._expected = frozenset(expected)
        self._known = self._expected
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._versions: dict[str, str] = {}
        self._known_count = 0
        for name in expected:
            self._add(name, "", proven=True)

    def learn(self, known: Collection[str], reported: Collection[str]) -> None:
        """Take the names that the server lists now, in place of those that it listed before.

        ``reported`` ones begin now, the others with their first request.
        """
        self._known = self._expected.union(known, reported)
        for name in sorted(reported)[:MAX_BEGUN]:
            key = name, self._versions.get(name, "")
            if key in self._models:
                self._models[key].proven = True
            elif self._has_place(name):
                self._add(*key, proven=True)

    def only(self) -> str:
        """Return the name of the only model there is, empty if there are several or none."""
        return next(iter(self._known)) if len(self._known) == 1 else ""

    def requested(self, name: str, version: str, endpoint: Endpoint) -> ModelMetrics | None:
        """Return the model that a request is for; None if too many are waiting for proof.

        Without a version it is the one that such a request was last answered by.
        """
        usual = self._versions.get(name, "")
        key = name, version or usual
        model = self._models.get(key)
        if model is not None:
            return model
        if name in self._known and key[1] == usual:
            return self._add(*key, proven=True) if self._has_place(name) else self._other()
        if endpoint not in PROVING:
            return self._other()
        return self._add(*key, proven=False) if self._has_room() else None

    def answered(
        self, asked: ModelMetrics, name: str, version: str, endpoint: Endpoint
    ) -> ModelMetrics:
        """Return the model that an answer is from, which proves a name that was not known.

        If only the answer has the version, a model that was not reported on yet takes it over.
        """
        if asked.name == OTHER or (endpoint not in PROVING and name not in self._known):
            return asked
        model = asked
        if version and (name, version) != (asked.name, asked.version):
            self._versions[name] = version
            fresh = not asked.proven and not asked.version
            if name == asked.name and fresh and (name, version) not in self._models:
                del self._models[name, asked.version]
                asked.version = version
                self._models[name, version] = asked
        if (name, version or model.version) != (model.name, model.version):
            model = self.requested(name, version, endpoint) or asked
        if not model.proven:
            if not self._budget.take(MODEL_SERIES):
                self._models.pop((model.name, model.version), None)
                return self._other()
            model.proven = True
        return model

    def reported(self) -> Iterator[ModelMetrics]:
        """Yield the models that the server has; more may come meanwhile."""
        return (model for model in tuple(self._models.values()) if model.proven)

    def _other(self) -> ModelMetrics:
        self._budget.limited["model"] += 1
        return self._models.get((OTHER, "")) or self._add(OTHER, "", proven=True)

    def _add(self, name: str, version: str, *, proven: bool) -> ModelMetrics:
        model = self._models[name, version] = self._new(name, version)
        model.proven = proven
        self._known_count += proven
        self._link_versions(name)
        return model

    def _link_versions(self, name: str) -> None:
        unversioned = self._models.get((name, ""))
        for model in self._models.values():
            if model.name == name and model.version and unversioned:
                model.unversioned = unversioned
                unversioned.not_told(*model.estimated)

    def _has_place(self, name: str) -> bool:
        return name in self._expected or self._known_count < MAX_MODELS

    def _has_room(self) -> bool:
        """Return whether another model may wait for proof; make room if none is waiting."""
        unproven = [model for model in self._models.values() if not model.proven]
        if len(unproven) < MAX_UNPROVEN:
            return True
        idle = next((model for model in unproven if not model.live), None)
        if idle:
            del self._models[idle.name, idle.version]
        return idle is not None
