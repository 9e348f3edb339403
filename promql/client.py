"""A client of the Prometheus HTTP API."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_MAX_BYTES = 32 * 1024 * 1024
_LONG = 4_000
"""Characters from which a question goes into the body: proxies refuse long lines."""
_TOO_MUCH = frozenset({413, 422, 503})
"""How servers refuse what is too large for them: Prometheus and VictoriaMetrics by 422, for too
many samples, and Prometheus by 503 what takes it too long."""


class PrometheusError(Exception):
    """A request to Prometheus failed; the text names the server and the reason."""


class QueryTooLargeError(PrometheusError):
    """A query or its result may be too large; a smaller one may succeed."""


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


Headers = Mapping[str, str]
NO_HEADERS: Headers = MappingProxyType({})


def query(
    base: str, expr: str, *, timeout: float = 5.0, headers: Headers = NO_HEADERS
) -> list[Sample]:
    """Evaluate ``expr`` now on the Prometheus at ``base``.

    A scalar is one sample without labels.  ``base`` may have a path, and user and password before
    the host; ``headers`` are added to the request.  ``timeout`` is in seconds.  Raises
    :class:`PrometheusError`.
    """
    data = _ask(base, "query", {"query": expr}, timeout, headers)
    result = data["result"]
    if data["resultType"] == "scalar":
        return [Sample({}, float(result[1]))]
    if data["resultType"] != "vector":
        raise PrometheusError(f"expected an instant vector, got a {data['resultType']}: {expr}")
    return [Sample(element["metric"], float(element["value"][1])) for element in result]


def query_range(
    base: str,
    expr: str,
    start: float,
    end: float,
    step: float,
    *,
    timeout: float = 120.0,
    headers: Headers = NO_HEADERS,
) -> list[Series]:
    """Evaluate ``expr`` every ``step`` seconds from ``start`` to ``end``.

    Times are in seconds since the epoch.  Prometheus limits a result to 11,000 points and an
    evaluation to two minutes.  Raises :class:`QueryTooLargeError` where a smaller query may
    succeed, else as :func:`query`.
    """
    params = {"query": expr, "start": repr(start), "end": repr(end), "step": repr(step)}
    result = _ask(base, "query_range", params, timeout, headers)["result"]
    return [
        Series(one["metric"], {float(time): float(value) for time, value in one["values"]})
        for one in result
        if "values" in one  # a native histogram has none
    ]


def _ask(
    base: str, endpoint: str, params: Mapping[str, str], timeout: float, headers: Headers
) -> dict[str, Any]:
    place, secret = _without_secret(base)
    request = _request(place, endpoint, params, {**secret, **headers})
    status = 200
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310 (http only)
            body = response.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read(_MAX_BYTES)
    except TimeoutError as error:
        message = f"Prometheus at {place} has not answered in {timeout:g} s"
        raise QueryTooLargeError(message) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = getattr(why, "strerror", None) or why
        raise PrometheusError(f"cannot reach Prometheus at {place}: {reason}") from error
    if len(body) > _MAX_BYTES:
        raise QueryTooLargeError(f"the answer of {place} is larger than {_MAX_BYTES >> 20} MiB")
    refused = QueryTooLargeError if status in _TOO_MUCH else PrometheusError
    try:
        answer = json.loads(body)
        if answer["status"] == "success":
            return dict(answer["data"])
        message = str(answer["error"])
    except (ValueError, KeyError, TypeError) as error:
        if status != 200:
            words = f"{status} {http.client.responses.get(status, '')}".strip()
            raise refused(f"{place} answered {words}") from error
        raise PrometheusError(f"{place} did not answer like a Prometheus") from error
    raise refused(f"Prometheus at {place} refused the query: {message}")


def _request(
    place: str, endpoint: str, params: Mapping[str, str], headers: Headers
) -> urllib.request.Request:
    url = f"{place.rstrip('/')}/api/v1/{endpoint}"
    text = urllib.parse.urlencode(params)
    body = text.encode() if len(text) > _LONG else None
    try:
        return urllib.request.Request(  # noqa: S310 (http only)
            url if body else f"{url}?{text}", body, {"User-Agent": "tokenslo", **headers}
        )
    except ValueError as error:
        raise PrometheusError(f"{place} is no address of a Prometheus: {error}") from None


def _without_secret(base: str) -> tuple[str, Headers]:
    """Remove user and password from a URL, so that no message shows them."""
    if not base.startswith(("http://", "https://")):
        raise PrometheusError(f"not an http(s) URL: {base}")
    try:
        parts = urllib.parse.urlsplit(base)
    except ValueError as error:
        raise PrometheusError(f"that is no URL: {error}") from None
    user, found, host = parts.netloc.rpartition("@")
    if not found:
        return base, {}
    token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    place = urllib.parse.urlunsplit(parts._replace(netloc=host))
    return place, {"Authorization": f"Basic {token}"}
