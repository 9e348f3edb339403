"""TLS contexts of the proxy, for clients and for the server behind it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from slos.errors import InvalidFile, Problem, quoted

HTTP1, HTTP2 = "http/1.1", "h2"
_OFFERED = [HTTP1, HTTP2]
"""HTTP/1.1 first: of the supported servers only gRPC servers speak HTTP/2, and their clients offer
nothing else.  Clients that offer both would fail at all other servers."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of the certificate chain that the proxy presents to clients, and of its key."""

    chain: str
    key: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Verification of the server's certificate; by default with the system's CAs and its host."""

    ca: str = ""
    server_name: str = ""


def for_clients(certificate: Certificate, setting: str) -> ssl.SSLContext:
    """Return the context for clients; raises InvalidFile, naming the ``setting``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_OFFERED)
    try:
        # With a password given, OpenSSL does not prompt for one if the key is encrypted.
        context.load_cert_chain(certificate.chain, certificate.key, password="")
    except OSError as error:
        files = f"{quoted(certificate.chain)} with {quoted(certificate.key)}"
        fix = "give a PEM certificate and the key that belongs to it"
        raise InvalidFile([_unusable(setting, files, error, fix)]) from None
    return context


def for_server(verification: Verification, setting: str) -> dict[str, ssl.SSLContext]:
    """Return the contexts for the server, by protocol of the client; raises InvalidFile."""
    contexts = {}
    for protocol in _OFFERED:
        try:
            context = ssl.create_default_context(cafile=verification.ca or None)
        except OSError as error:
            fix = "give a PEM file with the certificates of CAs"
            problem = _unusable(setting, quoted(verification.ca), error, fix)
            raise InvalidFile([problem]) from None
        context.set_alpn_protocols([protocol])
        contexts[protocol] = context
    return contexts


def _unusable(setting: str, what: str, error: OSError, fix: str) -> Problem:
    reason = (error.reason or "not PEM") if isinstance(error, ssl.SSLError) else error.strerror
    return Problem("tokenslo exporter", 0, setting, f"{what} cannot be used: {reason}", fix)
