"""Make the HTTP requests of sources, with limits of time and size; raise SourceError."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

import aiohttp

from exporter.samples import SourceError
from promql.http_client import (
    REDIRECTS,
    FetchLimits,
    HttpError,
    HttpResponse,
    exchange,
    public,
    read_body,
    too_large,
)

_JSON = {"Content-Type": "application/json"}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def fetch(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    limits: FetchLimits,
    statuses: Collection[int] = (200,),
    body: bytes | None = None,
) -> HttpResponse:
    """Make one request and return the response; redirects are not followed.

    Raises SourceError of one of the kinds timeout, refused, unreachable, tls, status, too_large,
    truncated and malformed.
    """
    received = bytearray()
    status = await receive(
        session,
        method,
        url,
        received.extend,
        limits=limits,
        statuses=statuses,
        body=body,
        whole=True,
    )
    return HttpResponse(status, bytes(received))


async def receive(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    take: Callable[[bytes], None],
    *,
    limits: FetchLimits,
    statuses: Collection[int] = (200,),
    body: bytes | None = None,
    whole: bool = False,
) -> int:
    """Make one request, pass the body to ``take`` chunk by chunk and return the status.

    For responses that a server sends only once: chunks that arrived before a failure have been
    passed on, up to the size limit.  With ``whole``, a response whose Content-Length exceeds the
    limit is refused before its body is read.
    Raises SourceError as :func:`fetch` does.
    """
    headers = {} if body is None else _JSON
    try:
        async with exchange(
            session, method, url, limits=limits, headers=headers, body=body
        ) as response:
            _check_head(response, public(url), statuses)
            if whole and (response.content_length or 0) > limits.max_bytes:
                raise too_large(url, limits)
            await read_body(response, take, url, limits)
            return response.status
    except HttpError as error:
        raise SourceError(error.kind, str(error)) from None


def parse_json(response: HttpResponse, url: str) -> object:
    """Parse the body as JSON; raises SourceError ``malformed``.

    Lone surrogates become question marks: UTF-8, and thus URLs and labels, cannot hold them.
    """
    try:
        value: object = json.loads(response.body)
        if _SURROGATE.search(response.body):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise SourceError("malformed", f"{public(url)} did not answer with JSON") from None
    return value


def _check_head(response: aiohttp.ClientResponse, where: str, statuses: Collection[int]) -> None:
    if response.status not in statuses:
        fix = "; give the final address" if response.status in REDIRECTS else ""
        raise SourceError("status", f"{where} answered {response.status}{fix}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise SourceError(
            "malformed", f"{where} compressed its response although the request did not accept it"
        )
