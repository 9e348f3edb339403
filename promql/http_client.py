"""Make HTTP requests with limits on time, size and redirects."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from promql.client_config import HttpClientConfig, current_config

CHUNK = 64 * 1024
REDIRECTS = range(300, 400)
MAX_REDIRECTS = 10

Headers = Mapping[str, str]
NO_HEADERS: Headers = MappingProxyType({})

ErrorKind = Literal[
    "timeout",
    "refused",
    "unreachable",
    "tls",
    "too_large",
    "truncated",
    "malformed",
    "credentials",
]


class HttpError(Exception):
    """A request failed; the message names URL and reason, ``cause`` is the reason alone."""

    def __init__(self, kind: ErrorKind, message: str, cause: object) -> None:
        self.kind = kind
        self.cause = str(cause)
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits of one response: seconds from connecting to the last byte, and bytes.

    ``connect`` are the seconds to connect, if they have a limit of their own.
    """

    timeout: float = 2.0
    max_bytes: int = 8 * 1024 * 1024
    connect: float | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The status, and the whole body."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, without credentials in its URL, and the headers for it."""

    url: str
    headers: Headers


def new_session(
    config: HttpClientConfig | None = None, *, connections: int = 16, keep_alive: float = 0.0
) -> aiohttp.ClientSession:
    """Return a session without cookies or transparent decompression (a size bomb).

    ``config`` has credentials, TLS and proxy, by default the current one.  At most ``connections``
    are open, 0 for no limit.  Every request uses a new connection unless one is ``keep_alive``
    seconds idle or less: an idle connection may be dead, and its failure would look like one of the
    server.
    """
    config = current_config() if config is None else config
    reuse: dict[str, Any] = {"keepalive_timeout": keep_alive} if keep_alive else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=connections, force_close=not keep_alive, ssl=config.tls or True, **reuse
        ),
        middlewares=(_authorize(config.authorization),) if config.authorization else (),
        proxy=config.proxy or None,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity", "User-Agent": "tokenslo"},
        auto_decompress=False,
        trust_env=False,
    )


def _authorize(header: Callable[[], str]) -> aiohttp.ClientMiddlewareType:
    """Return a middleware that adds the Authorization header to requests without one."""

    async def add(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "Authorization" not in request.headers:
            try:
                request.headers["Authorization"] = header()
            except (OSError, ValueError) as error:
                cause = f"its credentials cannot be read ({error})"
                raise HttpError(
                    "credentials", f"{public(str(request.url))}: {cause}", cause
                ) from None
        return await handler(request)

    return add


def public(url: str) -> str:
    """Return the URL without credentials, query and fragment, for messages and logs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def split_credentials(url: str) -> tuple[str, str]:
    """Return the URL without user and password, and the Authorization header that they make.

    The header is empty without credentials.  Raises ValueError for a malformed URL.
    """
    parts = urlsplit(url)
    user, found, host = parts.netloc.rpartition("@")
    if not found:
        return url, ""
    token = base64.b64encode(unquote(user).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), f"Basic {token}"


@asynccontextmanager
async def exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    limits: FetchLimits,
    headers: Headers = NO_HEADERS,
    body: bytes | None = None,
    proxy: Proxy | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send one request and yield the response, whose body is not yet read.

    Redirects are not followed.  The time limit holds until the context exits.  Raises HttpError,
    also for failures of a body that is read inside the context.
    """
    where = public(url)
    if proxy and url.startswith("http:"):
        headers = {**headers, **proxy.headers}  # without a tunnel, the proxy reads the request's
    try:
        async with (
            asyncio.timeout(limits.timeout),
            session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=proxy.url if proxy else None,
                proxy_headers=proxy.headers if proxy else None,
                timeout=aiohttp.ClientTimeout(total=None, connect=limits.connect),
            ) as response,
        ):
            yield response
    except aiohttp.ConnectionTimeoutError:
        cause = f"no connection within {limits.connect:g} s"
        raise HttpError("unreachable", f"{where} cannot be reached ({cause})", cause) from None
    except TimeoutError:
        cause = f"did not answer completely within {limits.timeout:g} s"
        raise HttpError("timeout", f"{where} {cause}", cause) from None
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        cause = "not an http or https address"
        raise HttpError("malformed", f"{where} is {cause}", cause) from None
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        found = getattr(error, "certificate_error", None)
        detail = getattr(found, "verify_message", None) or type(error).__name__
        cause = f"TLS failed ({detail})"
        raise HttpError("tls", f"{where}: {cause}", cause) from None
    except aiohttp.ClientConnectorError as error:
        raise _not_connected(where, error) from None
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
        cause = "closed the connection in mid-answer"
        raise HttpError("truncated", f"{where} {cause}", cause) from None
    except aiohttp.ClientHttpProxyError as error:
        cause = f"the proxy answered {error.status}"
        raise HttpError("unreachable", f"{where} cannot be reached ({cause})", cause) from None
    except aiohttp.ClientResponseError as error:
        cause = f"not HTTP ({type(error).__name__})"
        raise HttpError("malformed", f"{where}: {cause}", cause) from None
    except (aiohttp.ClientConnectionError, OSError) as error:
        cause = f"connection lost ({type(error).__name__})"
        raise HttpError("truncated", f"{where}: {cause}", cause) from None


async def read_body(
    response: aiohttp.ClientResponse, take: Callable[[bytes], None], url: str, limits: FetchLimits
) -> None:
    """Pass the body to ``take`` chunk by chunk, up to the size limit; raises HttpError beyond."""
    left = limits.max_bytes
    async for chunk in response.content.iter_chunked(CHUNK):
        take(chunk[:left])
        left -= len(chunk)
        if left < 0:
            raise too_large(url, limits)


def too_large(url: str, limits: FetchLimits) -> HttpError:
    """Return the error of a response above the size limit."""
    cause = f"answered more than {limits.max_bytes} bytes"
    return HttpError("too_large", f"{public(url)} {cause}", cause)


def request(
    method: str,
    url: str,
    *,
    limits: FetchLimits,
    headers: Headers = NO_HEADERS,
    body: bytes | None = None,
    use_proxies: bool = False,
) -> HttpResponse:
    """Make one request from synchronous code and return the response, whatever its status.

    Redirects keep method and body; only the first server receives ``headers`` and credentials.
    ``use_proxies`` takes proxies from the environment (``http_proxy``, ``https_proxy``,
    ``no_proxy``) unless the current configuration has one.
    Raises HttpError, and ValueError for headers that HTTP does not allow.
    """
    return asyncio.run(_request(method, url, limits, headers, body, use_proxies))


async def _request(
    method: str,
    url: str,
    limits: FetchLimits,
    headers: Headers,
    body: bytes | None,
    use_proxies: bool,
) -> HttpResponse:
    first, config = url, current_config()
    foreign = HttpClientConfig(proxy=config.proxy)
    proxied = use_proxies and not config.proxy
    async with new_session(config) as trusted, new_session(foreign) as others:
        for _ in range(1 + MAX_REDIRECTS):
            received = bytearray()
            same = _is_same_server(first, url)
            async with exchange(
                trusted if same else others,
                method,
                url,
                limits=limits,
                headers=headers if same else NO_HEADERS,
                body=body,
                proxy=environment_proxy(url) if proxied else None,
            ) as response:
                target = response.headers.get("Location")
                if target is None or response.status not in REDIRECTS:
                    await read_body(response, received.extend, url, limits)
                    return HttpResponse(response.status, bytes(received))
                url = urljoin(url, target)
    cause = f"redirects more than {MAX_REDIRECTS} times"
    raise HttpError("malformed", f"{public(url)} {cause}", cause)


def _is_same_server(first: str, url: str) -> bool:
    """Return whether ``url`` may get the secrets for ``first``: an upgrade to TLS is no change."""
    one, other = urlsplit(first), urlsplit(url)
    if one.hostname != other.hostname:
        return False
    if (one.scheme, other.scheme) == ("http", "https"):
        return one.port in (None, 80) and other.port in (None, 443)
    return one.scheme == other.scheme and _port(one) == _port(other)


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy for a URL from the environment, None without one."""
    parts = urlsplit(url)
    found = getproxies().get(parts.scheme)
    if not found or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    address, authorization = split_credentials(found if "://" in found else f"http://{found}")
    return Proxy(address, {"Proxy-Authorization": authorization} if authorization else NO_HEADERS)


def _not_connected(where: str, error: aiohttp.ClientConnectorError) -> HttpError:
    number = error.os_error.errno
    cause = os.strerror(number) if number and number > 0 else error.os_error.strerror
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        cause = f"no connection to the proxy: {cause}"
    elif isinstance(error.os_error, ConnectionRefusedError):
        message = f"{where} refused the connection: nothing listens there"
        return HttpError("refused", message, cause)
    return HttpError("unreachable", f"{where} cannot be reached ({cause})", cause)
