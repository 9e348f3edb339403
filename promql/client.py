"""The Prometheus HTTP API, as far as tokenslo asks it anything."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAX_BYTES = 32 * 1024 * 1024


class PrometheusError(Exception):
    """Prometheus could not be asked, or refused the question; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query: values by time, in seconds since the epoch."""

    labels: Mapping[str, str]
    values: Mapping[float, float]


def query(base: str, expr: str, *, timeout: float = 5.0) -> list[Sample]:
    """Evaluate ``expr`` now on the Prometheus at ``base``; a scalar is one sample without labels.

    ``timeout`` is in seconds.  Raises :class:`PrometheusError`.
    """
    data = _get(base, "query", {"query": expr}, timeout)
    result = data["result"]
    if data["resultType"] == "scalar":
        return [Sample({}, float(result[1]))]
    if data["resultType"] != "vector":
        raise PrometheusError(f"expected an instant vector, got a {data['resultType']}: {expr}")
    return [Sample(element["metric"], float(element["value"][1])) for element in result]


def query_range(
    base: str, expr: str, start: float, end: float, step: float, *, timeout: float = 60.0
) -> list[Series]:
    """Evaluate ``expr`` at ``start`` and every ``step`` seconds after it, up to ``end``.

    Times are in seconds since the epoch; Prometheus gives at most 11,000 points at once.  Raises
    :class:`PrometheusError`.
    """
    params = {"query": expr, "start": repr(start), "end": repr(end), "step": repr(step)}
    result = _get(base, "query_range", params, timeout)["result"]
    return [
        Series(one["metric"], {float(time): float(value) for time, value in one["values"]})
        for one in result
    ]


def _get(base: str, endpoint: str, params: Mapping[str, str], timeout: float) -> dict[str, Any]:
    if not base.startswith(("http://", "https://")):
        raise PrometheusError(f"not an http(s) URL: {base}")
    url = f"{base.rstrip('/')}/api/v1/{endpoint}?{urllib.parse.urlencode(params)}"
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # noqa: S310 (http only)
            body = response.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise PrometheusError(f"cannot reach Prometheus at {base}: {error}") from error
    try:
        answer = json.loads(body)
        if answer["status"] == "success":
            return dict(answer["data"])
        message = str(answer["error"])
    except (ValueError, KeyError, TypeError) as error:
        raise PrometheusError(f"{base} did not answer like a Prometheus") from error
    raise PrometheusError(f"Prometheus at {base} refused the query: {message}")
