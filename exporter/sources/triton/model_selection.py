"""Select the models of a Triton server that are reported.

Reported are models that stream (decoupled), ensembles, and models that publish engine metrics.
The others are tokenizing steps of an ensemble or have no tokens; they are shown as excluded, with
the reason.  So are models beyond MAX_MODELS: every model costs time in every scrape and has some
hundred series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from exporter.samples import Model, ModelInfo
from exporter.sources.http_source import MAX_MODELS
from exporter.sources.triton.model_repository import ModelConfig, RepositoryEntry, steps_of

NAME_IT = "name it in models to report on it"
MAX_SHOWN = 1024
"""The maximum of models of one server that are shown, reported or excluded."""


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """The models of a server, with the data that decides which are reported.

    ``names`` maps names in the metrics (namespace/model) to those of the HTTP API.  ``silent``: the
    metrics could not be read this time.  ``index`` is None without the HTTP API; ``unread`` holds
    the errors of reading configurations by name.  ``globs`` select models to report in any case;
    ``publishing`` are the models with engine metrics, ``counted`` those that any metric or
    statistic names.  ``reported_before`` are those of the last snapshot: they stay when they are
    unloaded or the metrics are silent.
    """

    names: Mapping[str, str]
    silent: bool
    index: Sequence[RepositoryEntry] | None
    configs: Mapping[str, ModelConfig]
    unread: Mapping[str, str]
    globs: Sequence[str]
    publishing: AbstractSet[Model]
    counted: AbstractSet[Model]
    reported_before: AbstractSet[Model]

    def models(self) -> list[ModelInfo]:
        """Return every model, by name and version.

        For a name in the index, its versions there count: Triton's metrics show ensembles also
        under version 1.
        """
        entries = self._entries()
        ensembles = self._ensembles()
        shown = self.keys()
        if len(shown) > MAX_SHOWN:
            shown.sort(key=lambda model: (model not in self.reported_before, model))
            shown = sorted(shown[:MAX_SHOWN])
        infos = [self._info(model, entries.get(model), ensembles) for model in shown]
        return self._limited(infos)

    def keys(self) -> list[Model]:
        """Return the name and version of every model."""
        entries = self._entries()
        named = {name for name, _ in entries}
        counted = {model for model in self.counted if model[0] not in named}
        return sorted(entries.keys() | self.publishing | counted)

    def bare(self, name: str) -> str:
        """Return the name of a model in the HTTP API."""
        return self.names.get(name, name)

    def steps(self, name: str) -> list[str]:
        """Return the models behind an ensemble."""
        return steps_of(self.configs, self.bare(name))

    def why_unknown(self, name: str) -> str:
        """Return the reason why a model's configuration is unknown."""
        if self.index is None:
            return "without --triton its configuration is not known"
        error = self.unread.get(self.bare(name), "not read yet")
        return f"its configuration could not be read: {error}"

    def _entries(self) -> dict[Model, RepositoryEntry]:
        """Return the entries of the index by model."""
        called = self._names_in_metrics()
        return {
            (name, entry.version): entry
            for entry in self.index or ()
            if (name := called.get(entry.name, entry.name))
        }

    def _names_in_metrics(self) -> dict[str, str]:
        """Return the names in the metrics by those of the API; empty for an ambiguous name."""
        called: dict[str, str] = {}
        for full, bare in self.names.items():
            called[bare] = "" if bare in called else full
        return called

    def _ensembles(self) -> dict[str, str]:
        """Return the first ensemble of every step."""
        first: dict[str, str] = {}
        for name, config in sorted(self.configs.items()):
            for step in config.steps:
                first.setdefault(step, name)
        return first

    def _limited(self, infos: Sequence[ModelInfo]) -> list[ModelInfo]:
        """Exclude models beyond the limit: first unready ones, then those not reported before."""
        chosen = sorted(
            (info for info in infos if not info.excluded),
            key=lambda info: (
                not info.ready,
                (info.model, info.version) not in self.reported_before,
            ),
        )
        excess = {(info.model, info.version) for info in chosen[MAX_MODELS:]}
        why = f"more than {MAX_MODELS} models of this server are reported on already"
        return [
            replace(info, excluded=why) if (info.model, info.version) in excess else info
            for info in infos
        ]

    def _info(
        self, model: Model, entry: RepositoryEntry | None, ensembles: Mapping[str, str]
    ) -> ModelInfo:
        name, version = model
        config = self.configs.get(self.bare(name))
        ready = entry.ready if entry else True
        steps = (self.configs.get(step) for step in self.steps(name))
        return ModelInfo(
            name,
            version,
            backend=config.backend if config else "",
            decoupled=bool(config)
            and any(one.decoupled for one in (config, *steps) if one is not None),
            ready=ready,
            reason="" if ready or entry is None else _state(entry),
            excluded=self._why_excluded(model, config, entry, ensembles),
        )

    def _why_excluded(
        self,
        model: Model,
        config: ModelConfig | None,
        entry: RepositoryEntry | None,
        ensembles: Mapping[str, str],
    ) -> str:
        gone = entry is not None and not entry.ready
        if entry and entry.unloaded and (version := self._ready_version(entry)):
            return f"it is unloaded, and version {version} is ready"
        if model in self.publishing:
            return ""
        if model in self.reported_before and (gone or self.silent):
            return ""
        if entry and gone and model not in self.counted:
            return f"it is not loaded ({_state(entry)})"
        if any(fnmatchcase(model[0], glob) for glob in self.globs):
            return ""
        if config is None:
            return f"it publishes no engine metrics, and {self.why_unknown(model[0])}"
        if config.decoupled or config.backend == "ensemble":
            return ""
        ensemble = ensembles.get(self.bare(model[0]))
        what = f"a step of the ensemble {ensemble}, " if ensemble else ""
        return f"{what}not decoupled and without engine metrics; {NAME_IT}"

    def _ready_version(self, entry: RepositoryEntry) -> str:
        """Return a ready version of an entry's model; empty if there is none."""
        ready = (one.version for one in self.index or () if one.name == entry.name and one.ready)
        return next(ready, "")


def _state(entry: RepositoryEntry) -> str:
    return f"{entry.state}: {entry.reason}" if entry.reason else entry.state
