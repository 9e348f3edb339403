"""Decide which requests a listener of the sidecar serves."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic
from urllib.parse import urlsplit

from aiohttp import web

from exporter.reloaded_files import ReloadedFiles
from exporter.web_config.basic_auth import BasicAuth
from exporter.web_config.rate_limiter import RateLimiter
from exporter.web_config.web_config import WebConfig
from slos.errors import InvalidFile, Problem

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

UNRESTRICTED_PATHS = frozenset(("/healthz", "/readyz"))
"""Paths of probes, which have no password: they get a status without details."""
REFRESH_SECONDS = 1.0
_PRIVATE_DOMAINS = (".svc", ".cluster.local", ".local", ".internal")
_CHALLENGE = 'Basic realm="tokenslo", charset="UTF-8"'


@dataclass(frozen=True, slots=True)
class _Active:
    """A configuration with the state that belongs to it."""

    config: WebConfig
    auth: BasicAuth | None
    limiter: RateLimiter | None


class ListenerAccess:
    """TLS, authentication, rate limit and permitted hosts of one listener.

    ``file`` is a web configuration file, empty for none; it is reloaded when it or a file that it
    names changes.  With ``authenticated``, a change that removes authentication is refused.
    ``hosts`` are permitted names in the Host header besides localhost and IP addresses, and
    ``private_names`` permits those that public DNS cannot hold.  They matter only without TLS and
    users.
    """

    def __init__(
        self,
        file: str = "",
        *,
        authenticated: bool = False,
        hosts: Iterable[str] = (),
        private_names: bool = False,
    ) -> None:
        self._file = file
        self._authenticated = authenticated
        self._hosts = frozenset(host.lower() for host in hosts)
        self._private_names = private_names
        self._tls: bool | None = None
        self._due = 0.0
        self._files = ReloadedFiles(self._load, self._named_files) if file else None
        self._active = self._files.value if self._files else _Active(WebConfig(), None, None)

    @property
    def encrypted(self) -> bool:
        """Whether clients must speak TLS."""
        return self._active.config.context is not None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a new connection."""
        self._refresh()
        context = self._active.config.context
        assert context  # noqa: S101  (a reload cannot remove TLS)
        return context

    def permits_peer(self, tls: ssl.SSLObject | None) -> bool:
        """Return whether the certificate of a client has a permitted name."""
        config = self._active.config.tls
        if not config or not config.allowed_sans:
            return True
        from exporter.web_config.server_tls import peer_sans

        return tls is not None and not peer_sans(tls.getpeercert()).isdisjoint(config.allowed_sans)

    async def add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        """Add the configured headers; a handler of ``on_response_prepare``."""
        response.headers.update(self._active.config.headers)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request, or refuse it with 401, 421, 429 or 503."""
        self._refresh()
        active = self._active
        if active.limiter and not active.limiter.admits():
            return _refusal(429, "More requests than the rate limit of --web-config permits.")
        if not self._permits_connection(request.get_extra_info("ssl_object")):
            refusal = _refusal(421, "--web-config has changed since you connected. Connect again.")
            refusal.force_close()
            return refusal
        if not active.config.context and not active.auth:
            host = _host_name(request.headers.get("Host", ""))
            private = self._private_names and _is_private(host)
            if not (private or host in self._hosts or _is_local_or_address(host)):
                return _refusal(421, "The Host header names a host that --allowed-host lacks.")
        if active.auth:
            given = request.headers.get("Authorization", "")
            verdict = await active.auth.check(given) if given else "refused"
            if verdict == "busy":
                return _refusal(503, "Too many passwords wait for a check.", {"Retry-After": "1"})
            if verdict == "refused":
                if given or request.path not in UNRESTRICTED_PATHS:
                    return _refusal(401, "Unauthorized.", {"WWW-Authenticate": _CHALLENGE})
                return _without_details(await handler(request))
        return await handler(request)

    def _permits_connection(self, tls: ssl.SSLObject | None) -> bool:
        """Return whether a connection, which may be older than the configuration, satisfies it."""
        config = self._active.config
        if not (config.context and config.tls and config.tls.requires_certificate):
            return True
        if tls is None or not tls.getpeercert():
            return False
        if tls.context is config.context:
            return True
        authorities = (context.get_ca_certs(True) for context in (tls.context, config.context))
        return self.permits_peer(tls) and next(authorities) == next(authorities)

    def _refresh(self) -> None:
        now = monotonic()
        if self._files and now >= self._due:
            self._due = now + REFRESH_SECONDS
            self._files.refresh(now)
            self._active = self._files.value

    def _load(self) -> _Active:
        from exporter.web_config.reader import read_web_config  # 0.9 MiB, only with a file

        config = read_web_config(self._file)
        if self._tls not in (None, bool(config.context)):
            what = "TLS cannot be switched on or off in a running sidecar"
            raise InvalidFile(
                [Problem(self._file, 0, "tls_server_config", what, "restart the sidecar")]
            )
        if self._authenticated and not config.authenticates:
            raise InvalidFile([no_authentication(self._file)])
        self._tls = bool(config.context)
        limit = config.rate_limit
        return _Active(
            config,
            BasicAuth(config.users) if config.users else None,
            RateLimiter(limit.interval, limit.burst) if limit else None,
        )

    def _named_files(self, active: _Active) -> tuple[str, ...]:
        return (self._file, *active.config.files)


def no_authentication(file: str) -> Problem:
    """Return the problem of a file that lets every client in."""
    return Problem(
        file,
        0,
        "",
        "authenticates no client",
        "add basic_auth_users, or client_auth_type: RequireAndVerifyClientCert with client_ca_file",
    )


def _host_name(header: str) -> str:
    """Return the name in a Host header in lower case; ``localhost`` without one (HTTP/1.0)."""
    if not header:
        return "localhost"
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_local_or_address(host: str) -> bool:
    """Return whether a host needs no DNS.

    A browser sends the name in the address of its page.  Any other name may be one that an
    attacker controls and has pointed to this machine (DNS rebinding).
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_private(host: str) -> bool:
    """Return whether a name is one that public DNS cannot hold, such as those of Kubernetes."""
    return bool(host) and ("." not in host or host.endswith(_PRIVATE_DOMAINS))


def _without_details(response: web.StreamResponse) -> web.Response:
    verdict = "ok" if response.status == 200 else "not ready"
    return web.Response(status=response.status, text=f"{verdict}\n")


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)
