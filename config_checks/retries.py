"""Retries in routes and policies of gateways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from config_checks.gateways import kind_of
from config_checks.setting import Setting

_ISTIO_RETRIES = ("connect-failure", "refused-stream", "unavailable", "cancelled")
_ENVOY_GATEWAY_RETRIES = (*_ISTIO_RETRIES, "503")


@dataclass(frozen=True, slots=True)
class RouteRetries:
    """The conditions and status codes of retries; ``defaults`` is whether they were not set."""

    setting: Setting
    conditions: tuple[str, ...]
    kind: str
    defaults: bool


def route_retries(document: Setting) -> Iterator[RouteRetries]:
    """Yield the retries of a VirtualService, also its defaults, or of a BackendTrafficPolicy."""
    name, spec = kind_of(document), document.get("spec")
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
