"""Which models a Triton server has, what they are, and which of them are reported on.

Reported on are models that stream (decoupled), ensembles, and models that publish engine metrics.
The others are an ensemble's tokenizing steps or have no tokens at all, and would only bury the
rest; they are shown as excluded, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase

from exporter.readings import ModelInfo
from exporter.sources.by_model import Model
from exporter.sources.repository import Config, Entry, steps_of

NAME_IT = "name it in models to report on it"


@dataclass(frozen=True, slots=True)
class Roster:
    """What is known of a server's models.

    ``names`` are those in the metrics (namespace/model) to those of the HTTP API, and ``silent``
    says that the metrics could not be read this time.
    ``index`` is None where the HTTP API is not used; ``unread`` says by name why a configuration
    could not be read; ``globs`` are models to report on in any case; ``publishing`` those with
    engine metrics, ``counted`` those that any metric or statistic names, and ``reported_before``
    those of the last reading: they stay when they are unloaded or the metrics are silent.
    """

    names: Mapping[str, str]
    silent: bool
    index: Sequence[Entry] | None
    configs: Mapping[str, Config]
    unread: Mapping[str, str]
    globs: Sequence[str]
    publishing: AbstractSet[Model]
    counted: AbstractSet[Model]
    reported_before: AbstractSet[Model]

    def models(self) -> list[ModelInfo]:
        """Return every model, by name and version.

        Where the index knows a name, its versions count: Triton's metrics show ensembles under
        version 1 too, whatever theirs is.
        """
        entries = {
            (name, entry.version): entry
            for entry in self.index or ()
            if (name := self._full(entry.name))
        }
        named = {name for name, _ in entries}
        keys = (
            entries.keys()
            | self.publishing
            | {model for model in self.counted if model[0] not in named}
        )
        return [self._info(model, entries.get(model)) for model in sorted(keys)]

    def bare(self, name: str) -> str:
        """Return the name by which the HTTP API knows a model."""
        return self.names.get(name, name)

    def steps(self, name: str) -> list[str]:
        """Return the models behind an ensemble."""
        return steps_of(self.configs, self.bare(name))

    def why_unknown(self, name: str) -> str:
        """Say why a model's configuration is not known, in a few words."""
        if self.index is None:
            return "without --triton its configuration is not known"
        error = self.unread.get(self.bare(name), "not read yet")
        return f"its configuration could not be read: {error}"

    def _full(self, bare: str) -> str:
        """Return the name in the metrics; none if two namespaces have it, and both are there."""
        called = [full for full, known in self.names.items() if known == bare]
        return "" if len(called) > 1 else called[0] if called else bare

    def _info(self, model: Model, entry: Entry | None) -> ModelInfo:
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
            excluded=self._why_excluded(model, config, entry),
        )

    def _why_excluded(self, model: Model, config: Config | None, entry: Entry | None) -> str:
        gone = entry is not None and not entry.ready
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
        ensembles = [
            name for name, one in sorted(self.configs.items()) if self.bare(model[0]) in one.steps
        ]
        what = f"a step of the ensemble {ensembles[0]}, " if ensembles else ""
        return f"{what}not decoupled and without engine metrics; {NAME_IT}"


def _state(entry: Entry) -> str:
    return f"{entry.state}: {entry.reason}" if entry.reason else entry.state
