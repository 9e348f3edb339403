"""Kubernetes objects and Helm values: containers of LLM servers and their pods."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from config_checks.gateways import parsed_seconds
from config_checks.setting import Setting

_SERVERS = re.compile(r"tritonserver|tensorrt[-_]?llm|trtllm|vllm|sglang", re.IGNORECASE)
_CONTAINER_KEYS = (
    *("livenessProbe", "startupProbe", "readinessProbe", "command", "args"),
    "terminationGracePeriodSeconds",
)
_ORCHESTRATOR = "TRTLLM_ORCHESTRATOR"
_LONG_FLAG = re.compile(r"--?([\w-]+)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerContainer:
    """The container of an LLM server and what holds it: a pod specification or Helm values."""

    container: Setting
    pod: Setting

    @property
    def words(self) -> list[tuple[str, Setting]]:
        """The words of the start command; shell scripts are split into words too."""
        return _words((*self.container.each("command"), *self.container.each("args")))

    @property
    def pre_stop(self) -> tuple[Setting, float | None] | None:
        """The preStop hook and the seconds that it sleeps, None if they are not known."""
        hook = self.container.get("lifecycle", "preStop")
        if hook is None or not hook.node.entries:
            return None
        sleep = hook.get("sleep", "seconds")
        if sleep is not None:
            return sleep, sleep.number
        command = hook.get("exec")
        words = [word for word, _ in _words(command.each("command") if command else ())]
        seconds = [
            parsed_seconds(after.rstrip(";"))
            for word, after in pairwise(words)
            if word.rpartition("/")[2] == "sleep"
        ]
        known = [each for each in seconds if each is not None]
        return hook, sum(known) if known and len(known) == len(seconds) else None

    @property
    def is_triton(self) -> bool:
        """Whether the start command runs Triton."""
        return any(word.split("/")[-1] == "tritonserver" for word, _ in self.words)

    @property
    def orchestrates(self) -> bool:
        """Whether TensorRT-LLM's orchestrator mode is on, by its variable or by NVIDIA's script."""
        variables = [(one.get("name"), one.get("value")) for one in self.container.each("env")]
        by_script = any(word.rstrip(";") == f"{_ORCHESTRATOR}=1" for word, _ in self.words)
        return (
            by_script
            or bool(self.flags("multi-model"))
            or any(
                name is not None and name.text == _ORCHESTRATOR and value is not None and value.true
                for name, value in variables
            )
        )

    @property
    def starts_mpi(self) -> bool:
        """Whether the start command uses MPI: itself, or by NVIDIA's script without `--no-mpi`."""
        names = {word.rpartition("/")[2] for word, _ in self.words}
        script = "launch_triton_server.py" in names and not self.flags("no-mpi")
        return script or "mpirun" in names

    @property
    def is_trtllm_serve(self) -> bool:
        """Whether the start command runs trtllm-serve."""
        return any(word.rpartition("/")[2] == "trtllm-serve" for word, _ in self.words)

    def flags(self, name: str) -> list[tuple[str, Setting]]:
        """Return the values of a flag, ``--name=value`` or ``--name value``."""
        found = []
        words = self.words
        for index, (word, where) in enumerate(words):
            match = _LONG_FLAG.fullmatch(word)
            if match and match[1] == name:
                following = words[index + 1][0] if index + 1 < len(words) else ""
                found.append((following if match[2] is None else match[2], where))
        return found


def _words(parts: Iterable[Setting]) -> list[tuple[str, Setting]]:
    """Return the words of a command; those of shell scripts are split too."""
    found = []
    for part in parts:
        try:
            words = shlex.split(part.text, comments=True)
        except ValueError:
            words = part.text.split()
        found += [(word, part) for word in words]
    return found


def is_manifest(document: Setting) -> bool:
    """Whether a document is a Kubernetes object."""
    return document.get("kind") is not None and document.get("apiVersion") is not None


def server_containers(document: Setting) -> Iterator[ServerContainer]:
    """Yield the containers of LLM servers in a Kubernetes object or in Helm values."""
    if is_manifest(document):
        for spec in document.walk():
            for container in spec.each("containers"):
                if _is_server(container):
                    yield ServerContainer(container, spec)
        return
    for part in document.walk():
        if any(part.each(key) for key in _CONTAINER_KEYS):
            yield ServerContainer(part, document)


def _is_server(container: Setting) -> bool:
    names = [container.get("image"), container.get("name")]
    names += [*container.each("command"), *container.each("args")]
    return any(name is not None and _SERVERS.search(name.text) for name in names)
