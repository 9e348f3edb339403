"""Kubernetes objects and Helm values: servers' containers, pods, and routes of gateways."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from config_checks.setting import Setting

_SERVERS = re.compile(r"tritonserver|tensorrt[-_]?llm|trtllm|vllm|sglang", re.IGNORECASE)
_CONTAINER_KEYS = (
    *("livenessProbe", "startupProbe", "readinessProbe", "command", "args"),
    "terminationGracePeriodSeconds",
)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_LONG_FLAG = re.compile(r"--?([\w-]+)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerContainer:
    """The container of an LLM server and what holds it: a pod specification or Helm values."""

    container: Setting
    pod: Setting

    @property
    def words(self) -> list[tuple[str, Setting]]:
        """The words of the start command; shell scripts are split into words too."""
        found = []
        for part in (*self.container.each("command"), *self.container.each("args")):
            try:
                words = shlex.split(part.text, comments=True)
            except ValueError:
                words = part.text.split()
            found += [(word, part) for word in words]
        return found

    @property
    def is_triton(self) -> bool:
        """Whether the start command runs Triton."""
        return any(word.split("/")[-1] == "tritonserver" for word, _ in self.words)

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


@dataclass(frozen=True, slots=True)
class RouteTimeout:
    """A total time limit of a gateway in seconds; 0 is none."""

    setting: Setting
    seconds: float
    kind: str


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


def parsed_seconds(text: str) -> float | None:
    """Read a duration of Kubernetes or Envoy (``60s``, ``1m30s``); a bare number is seconds."""
    parts = list(_SECONDS.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def route_timeouts(document: Setting) -> Iterator[RouteTimeout]:
    """Yield the total time limits of an HTTPRoute, AIGatewayRoute, VirtualService or policy."""
    kind = document.get("kind")
    name = kind.text if kind else ""
    spec = document.get("spec")
    if spec is None:
        return
    settings: list[Setting | None] = []
    if name in ("HTTPRoute", "GRPCRoute", "AIGatewayRoute"):
        for rule in spec.each("rules"):
            limits = [rule.get("timeouts", key) for key in ("request", "backendRequest")]
            if name == "AIGatewayRoute" and limits[0] is None:
                yield RouteTimeout(rule, 60.0, "AIGatewayRoute without timeouts.request: default")
            settings += limits
    elif name == "VirtualService":
        settings += [rule.get("timeout") for rule in spec.each("http")]
    elif name == "BackendTrafficPolicy":
        settings += [spec.get("timeout", "http", "requestTimeout")]
    for setting in settings:
        if setting is not None and (seconds := parsed_seconds(setting.text)) is not None:
            yield RouteTimeout(setting, seconds, name)


def is_route(document: Setting) -> bool:
    """Whether a document can limit the time of a request."""
    kind = document.get("kind")
    kinds = ("HTTPRoute", "GRPCRoute", "AIGatewayRoute", "VirtualService", "BackendTrafficPolicy")
    return kind is not None and kind.text in kinds
