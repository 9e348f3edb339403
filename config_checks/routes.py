"""Timeouts and retries in routes and policies of gateways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from config_checks.setting import Setting

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_ROUTES = ("HTTPRoute", "GRPCRoute", "AIGatewayRoute")
_POLICIES = ("BackendTrafficPolicy", "ClientTrafficPolicy")
_ISTIO_RETRIES = ("connect-failure", "refused-stream", "unavailable", "cancelled")
_ENVOY_GATEWAY_RETRIES = (*_ISTIO_RETRIES, "503")


@dataclass(frozen=True, slots=True)
class RouteTimeout:
    """A total time limit of a gateway in seconds; 0 is none."""

    setting: Setting
    seconds: float
    kind: str


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """How long a stream may be silent at a gateway in seconds; 0 is without limit."""

    setting: Setting
    seconds: float
    kind: str


@dataclass(frozen=True, slots=True)
class RouteRetries:
    """The conditions and status codes of retries; ``defaults`` is whether they were not set."""

    setting: Setting
    conditions: tuple[str, ...]
    kind: str
    defaults: bool


def is_route(document: Setting) -> bool:
    """Whether a document can limit the time of a request."""
    return _kind(document) in (*_ROUTES, *_POLICIES, "VirtualService")


def parsed_seconds(text: str) -> float | None:
    """Read a duration of Kubernetes or Envoy (``60s``, ``1m30s``); a bare number is seconds."""
    parts = list(_SECONDS.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def route_timeouts(document: Setting) -> Iterator[RouteTimeout]:
    """Yield the total time limits of an HTTPRoute, AIGatewayRoute, VirtualService or policy."""
    name, spec = _kind(document), document.get("spec")
    if spec is None:
        return
    settings: list[Setting | None] = []
    if name in _ROUTES:
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


def idle_timeouts(document: Setting) -> Iterator[IdleTimeout]:
    """Yield the limits of the silence of a stream."""
    name, spec = _kind(document), document.get("spec")
    if spec is None:
        return
    if name in _POLICIES:
        settings = [spec.get("timeout", "http", "streamIdleTimeout")]
    elif name == "AIGatewayRoute":
        settings = [rule.get("streamIdleTimeout") for rule in spec.each("rules")]
    else:
        return
    for setting in settings:
        if setting is not None and (seconds := parsed_seconds(setting.text)) is not None:
            yield IdleTimeout(setting, seconds, name)


def route_retries(document: Setting) -> Iterator[RouteRetries]:
    """Yield the retries of a VirtualService, also its defaults, or of a BackendTrafficPolicy."""
    name, spec = _kind(document), document.get("spec")
    if spec is None:
        return
    if name == "VirtualService":
        for rule in spec.each("http"):
            attempts, retried = rule.get("retries", "attempts"), rule.get("retries", "retryOn")
            if attempts is not None and attempts.number == 0:
                continue
            conditions = _ISTIO_RETRIES if retried is None else _listed(retried.text)
            yield RouteRetries(retried or rule, conditions, name, retried is None)
    elif name == "BackendTrafficPolicy" and (retry := spec.get("retry")) is not None:
        attempts, retried = retry.get("numRetries"), retry.get("retryOn")
        if attempts is not None and attempts.number == 0:
            return
        conditions = _ENVOY_GATEWAY_RETRIES if retried is None else _triggers(retried)
        yield RouteRetries(retried or retry, conditions, name, retried is None)


def _triggers(retried: Setting) -> tuple[str, ...]:
    """Return triggers, and the status codes of ``retriable-status-codes``."""
    triggers = [each.text for each in retried.each("triggers")]
    if "retriable-status-codes" in triggers:
        triggers += [each.text for each in retried.each("httpStatusCodes")]
    return tuple(triggers)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _kind(document: Setting) -> str:
    kind = document.get("kind")
    return kind.text if kind else ""
