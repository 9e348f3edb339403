"""Limits and buffering of gateways: Gateway API, Envoy Gateway, Istio, GKE, Ingress controllers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from config_checks.setting import Setting

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_RULES = ("rules.timeouts.request", "rules.timeouts.backendRequest")

# Fields of ``spec``: limits of a whole request, or of one attempt of it, then of time without data.
_FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "HTTPRoute": (_RULES, ()),
    "GRPCRoute": (_RULES, ()),
    "AIGatewayRoute": (_RULES, ("rules.streamIdleTimeout",)),
    "VirtualService": (("http.timeout", "http.retries.perTryTimeout"), ()),
    "BackendTrafficPolicy": (
        (
            *("timeout.http.requestTimeout", "timeout.http.maxStreamDuration"),
            "retry.perRetry.timeout",
        ),
        ("timeout.http.streamIdleTimeout",),
    ),
    "ClientTrafficPolicy": ((), ("timeout.http.streamIdleTimeout",)),
    "BackendConfig": (("timeoutSec",), ()),
    "GCPBackendPolicy": (("default.timeoutSec",), ()),
    "Ingress": ((), ()),
}
# Kind: the part that has a limit of a whole request by default, its field, and the seconds.
_DEFAULTS: Mapping[str, tuple[str, str, float]] = {
    "AIGatewayRoute": ("rules", "timeouts.request", 60.0),
    "BackendConfig": ("", "timeoutSec", 30.0),
    "GCPBackendPolicy": ("", "default.timeoutSec", 30.0),
}
# Annotation: limit of time without data, and the seconds of a number without unit.
_ANNOTATIONS: Mapping[str, float] = {
    "nginx.ingress.kubernetes.io/proxy-read-timeout": 1.0,
    "nginx.org/proxy-read-timeout": 1.0,
    "haproxy.org/timeout-server": 0.001,
    "haproxy-ingress.github.io/timeout-server": 0.001,
    "haproxy.router.openshift.io/timeout": 0.001,
    "konghq.com/read-timeout": 0.001,
    "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout": 1.0,
}
_ALB = "alb.ingress.kubernetes.io/load-balancer-attributes"
_ALB_IDLE = re.compile(r"(?:^|,)\s*idle_timeout\.timeout_seconds=(\d+)")
_IDLE_OF_CLASS: Mapping[str, float] = {"nginx": 60.0, "alb": 60.0}
"""Limits of time without data that an Ingress has by default, by the name of its class."""
_NGINX = "nginx.org/"
_BUFFERING = ("nginx.ingress.kubernetes.io/proxy-buffering", "nginx.org/proxy-buffering")
_CONFIG_MAP = ("proxy-read-timeout", "proxy-buffering")
"""Keys of the ConfigMap of an NGINX controller."""


@dataclass(frozen=True, slots=True)
class GatewayLimit:
    """A time limit in seconds; 0 is none.  ``idle``: of time without data, not of a request."""

    setting: Setting
    seconds: float
    source: str
    idle: bool = False


def is_gateway(document: Setting) -> bool:
    """Whether a document can limit the time of a request, or buffer its response."""
    kind = kind_of(document)
    if kind == "ConfigMap":
        return any(document.get("data", key) for key in _CONFIG_MAP)
    return kind in _FIELDS or any(True for _ in _annotated(document))


def gateway_limits(document: Setting) -> Iterator[GatewayLimit]:
    """Yield the time limits of a route, a policy, an Ingress or a controller's ConfigMap."""
    kind = kind_of(document)
    yield from _annotated(document)
    idle = document.get("data", _CONFIG_MAP[0]) if kind == "ConfigMap" else None
    if idle is not None and (seconds := parsed_seconds(idle.text)) is not None:
        yield GatewayLimit(idle, seconds, f"{kind}: {_CONFIG_MAP[0]}", idle=True)
    spec = document.get("spec")
    if spec is None or kind not in _FIELDS:
        return
    for paths, is_idle in zip(_FIELDS[kind], (False, True), strict=True):
        for path in paths:
            for setting in _values(spec, path.split(".")):
                if (seconds := parsed_seconds(setting.text)) is not None:
                    name = path.rpartition(".")[2]
                    yield GatewayLimit(setting, seconds, f"{kind}: {name}", is_idle)
    if kind in _DEFAULTS:
        yield from _defaults(kind, spec)
    if kind == "Ingress":
        yield from _class_default(document, spec)


def buffering(document: Setting) -> Iterator[tuple[Setting, str]]:
    """Yield the settings of NGINX that hold responses back, with the evidence."""
    annotations = document.get("metadata", "annotations")
    for name in _BUFFERING:
        setting = annotations.get(name) if annotations else None
        if setting is not None and setting.true:
            yield setting, f"{name} is {setting.text}"
    of_nginx = [name for name in _names(annotations) if name.startswith(_NGINX)]
    if annotations and of_nginx and annotations.get(_BUFFERING[1]) is None:
        yield annotations, f"{_BUFFERING[1]} is not set, so true"
    setting = document.get("data", _CONFIG_MAP[1]) if kind_of(document) == "ConfigMap" else None
    if setting is not None and setting.true:
        yield setting, f"{_CONFIG_MAP[1]} is {setting.text}"


def parsed_seconds(text: str, bare: float = 1.0) -> float | None:
    """Read a duration (``60s``, ``1m30s``); a number without unit counts ``bare`` seconds each."""
    parts = list(_SECONDS.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part[1]) * _UNITS.get(part[2], bare) for part in parts)


def kind_of(document: Setting) -> str:
    """Return the kind of a Kubernetes object, empty for another document."""
    kind = document.get("kind")
    return kind.text if kind else ""


def _names(mapping: Setting | None) -> list[str]:
    return list(mapping.node.entries or ()) if mapping else []


def _values(setting: Setting, keys: Sequence[str]) -> Iterator[Setting]:
    """Yield the values at a path, of every element of the lists on it."""
    if not keys:
        yield setting
        return
    for below in setting.each(keys[0]):
        yield from _values(below, keys[1:])


def _annotated(document: Setting) -> Iterator[GatewayLimit]:
    annotations = document.get("metadata", "annotations")
    if annotations is None:
        return
    for name, bare in _ANNOTATIONS.items():
        setting = annotations.get(name)
        if setting is not None and (seconds := parsed_seconds(setting.text, bare)) is not None:
            yield GatewayLimit(setting, seconds, name, idle=True)
    attributes = annotations.get(_ALB)
    found = _ALB_IDLE.search(attributes.text) if attributes else None
    if attributes and found:
        yield GatewayLimit(attributes, float(found[1]), "idle_timeout.timeout_seconds", idle=True)


def _defaults(kind: str, spec: Setting) -> Iterator[GatewayLimit]:
    part, path, seconds = _DEFAULTS[kind]
    for setting in spec.each(part) if part else [spec]:
        if setting.get(*path.split(".")) is None:
            yield GatewayLimit(setting, seconds, f"{kind} without {path}: default")


def _class_default(document: Setting, spec: Setting) -> Iterator[GatewayLimit]:
    """Yield the default of an Ingress whose class names its controller."""
    given = spec.get("ingressClassName")
    old = document.get("metadata", "annotations", "kubernetes.io/ingress.class")
    name = next((each.text for each in (given, old) if each is not None), "")
    if name in _IDLE_OF_CLASS and not any(True for _ in _annotated(document)):
        seconds = _IDLE_OF_CLASS[name]
        yield GatewayLimit(spec, seconds, f"Ingress of class {name}: default", idle=True)
