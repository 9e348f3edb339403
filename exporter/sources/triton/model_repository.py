"""Parse Triton's repository index and model configurations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

READY = "READY"


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """One entry of the repository index; a model that was never loaded has no version."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        """Whether Triton serves it."""
        return self.state == READY

    @property
    def unloaded(self) -> bool:
        """Whether it was unloaded on request or by the version policy, rather than by a failure."""
        return (self.state, self.reason) == ("UNAVAILABLE", "unloaded")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The used fields of a model's configuration; ``backend`` is ``ensemble`` for ensembles."""

    backend: str
    decoupled: bool
    steps: tuple[str, ...] = ()


def index(document: object) -> list[RepositoryEntry]:
    """Parse the response of ``POST /v2/repository/index``; entries without a name are skipped."""
    found = []
    for entry in document if isinstance(document, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            fields = (entry.get(key) for key in ("version", "state", "reason"))
            version, state, reason = (text if isinstance(text, str) else "" for text in fields)
            found.append(RepositoryEntry(entry["name"], version, state or "not loaded", reason))
    return found


def config(document: object) -> ModelConfig | None:
    """Parse the response of ``GET /v2/models/M/config``; None if it names no backend."""
    if not isinstance(document, dict):
        return None
    platform, backend = document.get("platform"), document.get("backend")
    policy = document.get("model_transaction_policy")
    decoupled = isinstance(policy, dict) and policy.get("decoupled") is True
    if platform == "ensemble":
        return ModelConfig("ensemble", decoupled, tuple(_steps(document)))
    for name in (backend, platform):
        if isinstance(name, str) and name:
            return ModelConfig(name, decoupled)
    return None


def steps_of(configs: Mapping[str, ModelConfig], name: str) -> list[str]:
    """Return every model behind an ensemble, in the order of its steps and theirs."""
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        known = configs.get(waiting.pop(0))
        for step in known.steps if known else ():
            if step not in found:
                found[step] = None
                waiting.append(step)
    return list(found)


def _steps(document: Mapping[str, object]) -> Iterator[str]:
    scheduling = document.get("ensemble_scheduling")
    steps: Iterable[object] = ()
    if isinstance(scheduling, dict) and isinstance(scheduling.get("step"), list):
        steps = scheduling["step"]
    for step in steps:
        if isinstance(step, dict) and isinstance(step.get("model_name"), str):
            yield step["model_name"]
