"""Read the status page of a sidecar as further evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promql.http_client import FetchLimits, HttpError, public, request

_LIMITS = FetchLimits(timeout=5.0, max_bytes=16 << 20)


@dataclass(frozen=True, slots=True)
class SidecarStatus:
    """What a sidecar reports: failing sources, unavailable signals with reasons, unready layers.

    ``error`` is why there is no report.
    """

    url: str
    sources_down: Mapping[str, str]
    unavailable: Mapping[str, str]
    unready: tuple[str, ...] = ()
    error: str = ""

    def failures(self, check: str) -> tuple[str, ...]:
        """Return the failures that make a check sick, where Prometheus has no data for it."""
        if check == "sources":
            return tuple(f"{source}: {why}" for source, why in self.sources_down.items())
        return self.unready if check == "not_ready" else ()


def read_sidecar_status(url: str) -> SidecarStatus:
    """Read the status page of the sidecar at ``url``, which may be that of its metrics."""
    base = url.rstrip("/").removesuffix("/metrics")
    try:
        response = request(
            "GET", f"{base}/", limits=_LIMITS, headers={"Accept": "application/json"}
        )
    except HttpError as error:
        return SidecarStatus(public(base), {}, {}, error=error.cause)
    return parse_sidecar_status(public(base), response.body)


def parse_sidecar_status(url: str, page: bytes) -> SidecarStatus:
    """Return the status in a page of the sidecar at ``url``."""
    try:
        return _status(url, json.loads(page))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        message = "it is not the status page of a tokenslo exporter"
        return SidecarStatus(url, {}, {}, error=message)


def _status(url: str, page: Mapping[str, Any]) -> SidecarStatus:
    sources = {
        str(one["source"]): str(one["error"] or "the last scrape failed")
        for one in page["sources"]
        if not one["up"]
    }
    unavailable = {
        str(signal["metric"]): _reason(signal)
        for model in page["models"]
        for signal in model["signals"] or ()
        if signal["quality"] == "unavailable"
    }
    unready = tuple(
        f"{one['layer']} {one['name']}: {one['reason']}"
        for one in page["layers"]
        if one["ready"] is False
    )
    return SidecarStatus(url, sources, unavailable, unready)


def _reason(signal: Mapping[str, Any]) -> str:
    fix = f" Fix: {signal['fix']}." if signal["fix"] else ""
    return f"{signal['note']}.{fix}" if signal["note"] else fix.strip()
