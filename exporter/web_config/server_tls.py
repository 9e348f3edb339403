"""TLS of the sidecar's listeners, as tls_server_config describes it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slos.config_values import line_of_text, tls_version
from slos.errors import BadValue
from slos.schema import Field, Place, Shape, boolean, expect, read_mapping

ClientAuth = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]
REQUIRED: ClientAuth = "RequireAndVerifyClientCert"
_MODES: Mapping[str, ssl.VerifyMode] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
_TLS13_SUITES = frozenset(
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
)
_SUITES = {
    f"TLS_ECDHE_{kind}_WITH_{iana}": f"ECDHE-{kind}-{name}"
    for kind in ("ECDSA", "RSA")
    for iana, name in (
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305", "CHACHA20-POLY1305"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""OpenSSL's names of the cipher suites for TLS 1.2 that Go does not list as insecure."""
_CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
_SAN_KINDS = frozenset(("DNS", "IP Address", "email", "URI"))


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM data: the path of a file, or the text itself."""

    file: str = ""
    text: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.file or self.text)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The values of tls_server_config."""

    certificate: Pem
    key: Pem
    client_ca: Pem
    client_auth: str
    allowed_sans: tuple[str, ...]
    minimum: ssl.TLSVersion
    maximum: ssl.TLSVersion
    suites: tuple[str, ...]
    server_order: bool
    curve: str

    @property
    def requires_certificate(self) -> bool:
        """Whether every client needs a certificate."""
        return self.client_auth == REQUIRED

    @property
    def files(self) -> tuple[str, ...]:
        """The files to reload."""
        return tuple(pem.file for pem in (self.certificate, self.key, self.client_ca) if pem.file)


def read_tls(value: object, place: Place, folder: Path) -> ServerTls | None:
    """Read tls_server_config; paths are relative to ``folder``."""
    before = len(place.problems)
    read = read_mapping(FIELDS, value, place)
    certificate, key, client_ca = (
        _pem(read, name, place, folder) for name in ("cert", "key", "client_ca")
    )
    for name, pem in (("cert", certificate), ("key", key)):
        if not pem and f"{name}_file" not in read and name not in read:
            place.refuse("is missing", f"add {name}_file: {name}.pem", f"{name}_file")
    client_auth = read.get("client_auth_type") or "NoClientCert"
    if _MODES[client_auth] and not client_ca:
        fix = "add client_ca_file: ca.pem, the CA of the clients"
        place.refuse("is missing, so every public CA would be trusted", fix, "client_ca_file")
    if client_ca and not _MODES[client_auth]:
        fix = f"add client_auth_type: {REQUIRED}"
        place.refuse("is missing, so client_ca would have no effect", fix, "client_auth_type")
    if read.get("client_allowed_sans") and client_auth != REQUIRED:
        fix = f"write client_auth_type: {REQUIRED}"
        place.at("client_allowed_sans").refuse("applies to required certificates only", fix)
    minimum = read.get("min_version") or ssl.TLSVersion.TLSv1_2
    maximum = read.get("max_version") or ssl.TLSVersion.TLSv1_3
    if minimum > maximum:
        place.at("min_version").refuse("is above max_version", "write TLS12")
    if len(place.problems) > before:
        return None
    return ServerTls(
        certificate,
        key,
        client_ca,
        client_auth,
        tuple(read.get("client_allowed_sans") or ()),
        minimum,
        maximum,
        tuple(read.get("cipher_suites") or ()),
        read.get("prefer_server_cipher_suites") is not False,
        read.get("curve_preferences") or "",
    )


def new_context(tls: object, place: Place) -> ssl.SSLContext:
    """Return the context of a listener; reads the certificates."""
    assert isinstance(tls, ServerTls)  # noqa: S101  (the signature is that of a reader)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = tls.minimum, tls.maximum
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not tls.server_order:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.suites:
        older = [_SUITES[suite] for suite in tls.suites if suite in _SUITES]
        if older:
            context.set_ciphers(":".join(older))
        elif tls.maximum >= ssl.TLSVersion.TLSv1_3:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
    if tls.curve:
        context.set_ecdh_curve(tls.curve)
    _load_certificate(context, tls, place)
    context.verify_mode = _MODES[tls.client_auth]
    if tls.client_ca:
        _load_client_ca(context, tls.client_ca, place)
    return context


def peer_sans(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the DNS names, addresses, e-mail addresses and URIs of a verified certificate."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(text for kind, text in names if kind in _SAN_KINDS)


def _load_certificate(context: ssl.SSLContext, tls: ServerTls, place: Place) -> None:
    try:
        with _path(tls.certificate) as chain, _path(tls.key) as key:
            # With a password given, OpenSSL does not prompt for one if the key is encrypted.
            context.load_cert_chain(chain, key, password="")
    except (OSError, ValueError) as error:
        where = place.at("cert_file" if tls.certificate.file else "cert")
        fix = "give a PEM certificate and the key that belongs to it"
        where.refuse(f"cannot be used with its key: {_reason(error)}", fix)


def _load_client_ca(context: ssl.SSLContext, ca: Pem, place: Place) -> None:
    try:
        context.load_verify_locations(cafile=ca.file or None, cadata=ca.text or None)
    except (OSError, ValueError) as error:
        where = place.at("client_ca_file" if ca.file else "client_ca")
        where.refuse(f"cannot be used: {_reason(error)}", "give the certificates of CAs in PEM")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM"
    return (error.strerror if isinstance(error, OSError) else None) or "not PEM"


@contextmanager
def _path(pem: Pem) -> Iterator[str]:
    """Yield a path of PEM data; text is in memory only."""
    if pem.file:
        yield pem.file
        return
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem.text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _pem(read: Mapping[str, Any], name: str, place: Place, folder: Path) -> Pem:
    file, text = read.get(f"{name}_file") or "", read.get(name) or ""
    if file and text:
        place.at(name).refuse(f"is given twice: {name}_file is another one", "delete one of them")
    return Pem(str(folder / file) if file else "", text)


def _pem_text(value: object, _: Place) -> str:
    text: str = expect(str, "PEM data", value)
    if not text.strip():
        raise BadValue("is empty", "write PEM data, or delete the key")
    return text


def _client_auth(value: object, _: Place) -> str:
    text: str = expect(str, REQUIRED, value)
    if text in _UNVERIFIED:
        raise BadValue(f"{text} accepts any certificate, without verification", f"write {REQUIRED}")
    if text not in _MODES:
        raise BadValue("is not a client authentication type", f"write {REQUIRED}")
    return text


def _texts(value: object, place: Place) -> list[str]:
    found = expect(list, "a list", value)
    for number, one in enumerate(found):
        if not isinstance(one, str) or not one:
            place.at(number).refuse("is not text", "write text")
    return [one for one in found if isinstance(one, str) and one]


def _suites(value: object, place: Place) -> list[str]:
    found = _texts(value, place)
    for number, one in enumerate(found):
        if one not in _SUITES and one not in _TLS13_SUITES:
            fix = "use the names of Go, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
            place.at(number).refuse("is not a cipher suite, or an insecure one", fix)
    return found


def _curve(value: object, place: Place) -> str:
    found = _texts(value, place)
    if len(found) != 1:
        raise BadValue("does not name one curve", "write one, or delete the key for the default")
    if found[0] not in _CURVES:
        raise BadValue("is not a supported curve", f"write one of {', '.join(_CURVES)}")
    return _CURVES[found[0]]


_ANY: Shape = {}
FIELDS = (
    Field("cert_file", line_of_text, about="Certificate chain (PEM).", shape=_ANY),
    Field("key_file", line_of_text, about="Private key (PEM) of the certificate.", shape=_ANY),
    Field("cert", _pem_text, about="The certificate chain as text.", shape=_ANY),
    Field("key", _pem_text, about="The private key as text.", shape=_ANY),
    Field("client_ca_file", line_of_text, about="CAs (PEM) of client certificates.", shape=_ANY),
    Field("client_ca", _pem_text, about="CAs of client certificates as text.", shape=_ANY),
    Field(
        "client_auth_type",
        _client_auth,
        about="NoClientCert (default), VerifyClientCertIfGiven or RequireAndVerifyClientCert.",
        shape=_ANY,
    ),
    Field(
        "client_allowed_sans",
        _texts,
        about="A client certificate needs one of these alternative names.",
        shape=_ANY,
    ),
    Field("min_version", tls_version, about="TLS12 (default) or TLS13.", shape=_ANY),
    Field("max_version", tls_version, about="TLS12 or TLS13 (default).", shape=_ANY),
    Field(
        "cipher_suites",
        _suites,
        about="Cipher suites for TLS 1.2, by Go's names; those of TLS 1.3 are always on.",
        shape=_ANY,
    ),
    Field(
        "prefer_server_cipher_suites",
        boolean,
        about="true (default): the order of the server decides.",
        shape=_ANY,
    ),
    Field("curve_preferences", _curve, about="One elliptic curve.", shape=_ANY),
)
