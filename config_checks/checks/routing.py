"""Checks of gateways: time limits of requests and of silence, buffering, retries."""

from __future__ import annotations

from collections.abc import Iterator

from config_checks.configuration import Configuration
from config_checks.findings import ConfigFault, Unseen
from config_checks.gateways import buffering, kind_of

_REJECTED = frozenset(
    (
        *("5xx", "gateway-error", "unavailable", "resource-exhausted", "internal"),
        *("500", "503", "429", "529"),
    )
)
"""Conditions and status codes with which servers reject requests in an overload."""
_DEFAULT = "the gateway's default applies"


def short_gateway_timeout(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find limits of whole requests that end before the longest answer."""
    answer = config.longest_answer
    if answer is None:
        return
    limits = [limit for limit in config.gateway_limits if not limit.idle]
    if not limits:
        yield Unseen(f"the gateways set no limit of a whole request: {_DEFAULT}")
    for limit in limits:
        if 0 < limit.seconds < answer.seconds:
            evidence = f"{limit.source}: {limit.seconds:g} s in total, the longest answer {answer}"
            yield ConfigFault(limit.setting, evidence)


def short_idle_timeout(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find limits of time without data that a stream, or a request without streaming, reaches."""
    gap, answer = float(config.longest_gap), config.longest_answer
    limits = [limit for limit in config.gateway_limits if limit.idle]
    if not limits:
        defaults = "Envoy 5 minutes, NGINX and AWS ALB 60 s"
        yield Unseen(f"the gateways set no idle timeout: {_DEFAULT} ({defaults})")
    for limit in limits:
        idle = f"{limit.source}: {limit.seconds:g} s of silence"
        if 0 < limit.seconds <= gap:
            yield ConfigFault(limit.setting, f"{idle}, the longest gap is {gap:g} s")
        elif answer and 0 < limit.seconds < answer.seconds:
            evidence = f"{idle}, a request without streaming is silent to its end: {answer}"
            yield ConfigFault(limit.setting, evidence, "note")


def buffered_responses(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find gateways that hold tokens back until a buffer is full."""
    if not any(kind_of(each) in ("Ingress", "ConfigMap") for each in config.gateways):
        yield Unseen("no Ingress or ConfigMap of an NGINX controller was given")
    for gateway in config.gateways:
        for setting, evidence in buffering(gateway):
            yield ConfigFault(setting, evidence)


def retried_rejections(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find retries of requests that a server rejected."""
    if not config.retries:
        yield Unseen("no VirtualService or policy with retries was given")
    for retries in config.retries:
        found = [one for one in retries.conditions if one in _REJECTED]
        if found:
            state = "retries by default on" if retries.defaults else "retries on"
            evidence = f"{retries.kind}: {state} {', '.join(found)}"
            yield ConfigFault(retries.setting, evidence, "note" if retries.defaults else None)
