"""A client of the Prometheus HTTP API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from promql.http_client import (
    NO_HEADERS,
    FetchLimits,
    Headers,
    HttpError,
    HttpResponse,
    request,
    split_credentials,
)

_MAX_BYTES = 32 * 1024 * 1024
_CONNECT_SECONDS = 10.0
_LONG = 4_000
"""Characters from which the query goes into the body: proxies refuse long request lines."""
_TOO_LARGE = frozenset({413, 422, 503})
"""Statuses of queries that are too large: Prometheus and VictoriaMetrics answer 422 to too many
samples, and Prometheus 503 to an evaluation that takes too long."""

_MALFORMED = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip
"""Errors in reading a response that is not one of Prometheus."""


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


class QueryResult(list[Sample]):
    """The samples of an instant query; with ``warnings`` some may be missing."""

    def __init__(self, samples: Iterable[Sample] = (), warnings: tuple[str, ...] = ()) -> None:
        super().__init__(samples)
        self.warnings = warnings


def query(
    base: str,
    expr: str,
    *,
    timeout: float = 5.0,
    headers: Headers = NO_HEADERS,
    time: float | None = None,
) -> QueryResult:
    """Evaluate ``expr`` on the Prometheus at ``base``, now or at ``time``.

    A scalar is one sample without labels; a native histogram has no value and is left out.
    ``base`` may have a path, and user and password before the host; ``headers`` are added to the
    request.  ``timeout`` is in seconds, and ``time`` in seconds since the epoch.  Raises
    :class:`PrometheusError`.
    """
    params = {"query": expr} if time is None else {"query": expr, "time": repr(time)}
    return read_vector(*_query(base, "query", params, timeout, headers), expr)


def read_vector(response: HttpResponse, address: str, expr: str) -> QueryResult:
    """Return the result of an instant query from its response; raises as :func:`query`."""
    with _refusing_malformed(address):
        document = _document(response, address)
        result, kind = document["data"]["result"], document["data"]["resultType"]
        if kind == "scalar":
            samples = [Sample({}, float(result[1]))]
        elif kind == "vector":
            samples = [
                Sample(_labels(element), float(element["value"][1]))
                for element in result
                if "value" in element
            ]
        else:
            raise PrometheusError(f"expected an instant vector, got a {kind}: {expr}")
        return QueryResult(samples, _warnings(document))


def _warnings(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the warnings of a response, without hints about the query itself."""
    given = document.get("warnings") or ()
    return tuple(str(each) for each in given if not str(each).startswith("PromQL info"))


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
    return read_matrix(*_query(base, "query_range", params, timeout, headers))


def read_matrix(response: HttpResponse, address: str) -> list[Series]:
    """Return the result of a range query from its response; raises as :func:`query_range`."""
    with _refusing_malformed(address):
        return [
            Series(_labels(one), {float(time): float(value) for time, value in one["values"]})
            for one in _document(response, address)["data"]["result"]
            if "values" in one  # a native histogram has none
        ]


def _labels(element: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = element["metric"]
    if not all(isinstance(value, str) for value in labels.values()):
        raise TypeError("a label is not text")
    return labels


def _query(
    base: str, endpoint: str, params: Mapping[str, str], timeout: float, headers: Headers
) -> tuple[HttpResponse, str]:
    """Return the response to a query, and the address of the server without credentials."""
    address, authorization = _address(base)
    secret = {"Authorization": authorization} if authorization else {}
    return _send(address, endpoint, params, timeout, {**secret, **headers}), address


def _document(response: HttpResponse, address: str) -> dict[str, Any]:
    """Return the document of a successful response."""
    refusal = QueryTooLargeError if response.status in _TOO_LARGE else PrometheusError
    try:
        document: dict[str, Any] = json.loads(response.body)
        if document["status"] == "success":
            return document
        message = str(document["error"])
    except _MALFORMED as error:
        if response.status == 200:
            raise
        raise refusal(f"{address} answered {_status(response.status)}") from error
    raise refusal(f"Prometheus at {address} refused the query: {message}")


@contextmanager
def _refusing_malformed(address: str) -> Iterator[None]:
    try:
        yield
    except _MALFORMED as error:
        raise PrometheusError(f"{address} did not answer like a Prometheus") from error


def _send(
    address: str, endpoint: str, params: Mapping[str, str], timeout: float, headers: Headers
) -> HttpResponse:
    url, text = f"{address.rstrip('/')}/api/v1/{endpoint}", urlencode(params)
    limits = FetchLimits(timeout, _MAX_BYTES, connect=min(_CONNECT_SECONDS, timeout / 2))
    try:
        if len(text) <= _LONG:
            return request("GET", f"{url}?{text}", limits=limits, headers=headers, use_proxies=True)
        form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return request(
            "POST", url, limits=limits, headers=form, body=text.encode(), use_proxies=True
        )
    except HttpError as error:
        if error.kind == "timeout":
            message = f"Prometheus at {address} has not answered in {timeout:g} s"
            raise QueryTooLargeError(message) from error
        if error.kind == "too_large":
            message = f"the answer of {address} is larger than {_MAX_BYTES >> 20} MiB"
            raise QueryTooLargeError(message) from error
        raise PrometheusError(f"cannot reach Prometheus at {address}: {error.cause}") from error
    except ValueError as error:
        raise PrometheusError(f"cannot reach Prometheus at {address}: {error}") from error


def _status(status: int) -> str:
    known = status in HTTPStatus._value2member_map_
    return f"{status} {HTTPStatus(status).phrase}" if known else str(status)


def _address(base: str) -> tuple[str, str]:
    """Split user and password from a URL, so that no message shows them."""
    if not base.startswith(("http://", "https://")):
        raise PrometheusError(f"not an http(s) URL: {base}")
    try:
        return split_credentials(base)
    except ValueError as error:
        raise PrometheusError(f"that is no URL: {error}") from None
