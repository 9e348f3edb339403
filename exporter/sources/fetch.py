"""Make one HTTP request with limits on time, size and redirects."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from exporter.samples import SourceError

CHUNK = 64 * 1024
REDIRECTS = range(300, 400)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits of one response: seconds from connecting to the last byte, and bytes."""

    timeout: float = 2.0
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An accepted status, and the whole body."""

    status: int
    body: bytes


def new_session(tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """Return a session without proxies, cookies or transparent decompression (a size bomb).

    Every request uses a new connection: an idle connection may be dead, and its failure would look
    like a failure of the server.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=16, force_close=True, ssl=tls or True),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity", "User-Agent": "tokenslo"},
        auto_decompress=False,
        trust_env=False,
    )


def public(url: str) -> str:
    """Return the URL without credentials, query and fragment, for messages and logs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


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
    where = public(url)
    try:
        async with (
            asyncio.timeout(limits.timeout),
            session.request(
                method,
                url,
                data=body,
                headers={"Content-Type": "application/json"} if body is not None else None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response,
        ):
            _check_head(response, where, statuses)
            if whole and (response.content_length or 0) > limits.max_bytes:
                raise _too_large(where, limits)
            await _take_body(response, take, where, limits)
            return response.status
    except TimeoutError:
        raise SourceError(
            "timeout", f"{where} did not answer completely within {limits.timeout:g} s"
        ) from None
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise SourceError("malformed", f"{where} is not an http or https address") from None
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        raise SourceError("tls", f"{where}: TLS failed ({type(error).__name__})") from None
    except aiohttp.ClientConnectorError as error:
        raise _not_connected(where, error) from None
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
        raise SourceError("truncated", f"{where} closed the connection in mid-answer") from None
    except (aiohttp.ClientResponseError, aiohttp.ClientConnectionError, OSError) as error:
        kind = "malformed" if isinstance(error, aiohttp.ClientResponseError) else "truncated"
        what = "not HTTP" if kind == "malformed" else "connection lost"
        raise SourceError(kind, f"{where}: {what} ({type(error).__name__})") from None


def parse_json(answer: HttpResponse, url: str) -> object:
    """Parse the body as JSON; raises SourceError ``malformed``.

    Lone surrogates become question marks: UTF-8, and thus URLs and labels, cannot hold them.
    """
    try:
        value: object = json.loads(answer.body)
        if _SURROGATE.search(answer.body):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise SourceError("malformed", f"{public(url)} did not answer with JSON") from None
    return value


def _check_head(response: aiohttp.ClientResponse, where: str, statuses: Collection[int]) -> None:
    if response.status not in statuses:
        fix = "; give the final address" if response.status in REDIRECTS else ""
        raise SourceError("status", f"{where} answered {response.status}{fix}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise SourceError("malformed", f"{where} compressed its answer without being asked to")


async def _take_body(
    response: aiohttp.ClientResponse, take: Callable[[bytes], None], where: str, limits: FetchLimits
) -> None:
    left = limits.max_bytes
    async for chunk in response.content.iter_chunked(CHUNK):
        take(chunk[:left])
        left -= len(chunk)
        if left < 0:
            raise _too_large(where, limits)


def _too_large(where: str, limits: FetchLimits) -> SourceError:
    return SourceError("too_large", f"{where} answered more than {limits.max_bytes} bytes")


def _not_connected(where: str, error: aiohttp.ClientConnectorError) -> SourceError:
    if isinstance(error.os_error, ConnectionRefusedError):
        return SourceError("refused", f"{where} refused the connection: nothing listens there")
    return SourceError("unreachable", f"{where} cannot be reached ({error.os_error.strerror})")
