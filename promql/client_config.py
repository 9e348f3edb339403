"""Credentials, TLS and proxy of HTTP requests to servers that the user names."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpClientConfig:
    """How to reach servers.

    ``authorization`` returns the Authorization header, empty for none; it is called before each
    request, because tokens in files are renewed.  It raises OSError or ValueError if the file of a
    secret cannot be read.  ``proxy`` is a URL, which may hold credentials.
    """

    authorization: Callable[[], str] | None = None
    tls: ssl.SSLContext | None = None
    proxy: str = field(default="", repr=False)


DIRECT = HttpClientConfig()
_CURRENT: ContextVar[HttpClientConfig] = ContextVar("http_client_config", default=DIRECT)


@contextmanager
def http_client_config(config: HttpClientConfig) -> Iterator[None]:
    """Use ``config`` for the sessions that are opened inside, in this task and its children."""
    token = _CURRENT.set(config)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_config() -> HttpClientConfig:
    """Return the configuration of new sessions."""
    return _CURRENT.get()
