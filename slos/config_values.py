"""Read values that the client and the server configuration of HTTP have in common."""

from __future__ import annotations

import ssl

from slos.errors import BadValue
from slos.schema import Place, expect

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = ("TLS10", "TLS11")


def line_of_text(value: object, _: Place) -> str:
    """Read one line of any length, such as a path or a password."""
    text: str = expect(str, "text", value)
    if not text or not text.isprintable():
        raise BadValue("is empty or holds control characters", "write one line")
    return text


def tls_version(value: object, _: Place) -> ssl.TLSVersion:
    """Read TLS12 or TLS13."""
    text: str = expect(str, "TLS12 or TLS13", value)
    if text not in _VERSIONS:
        what = "is obsolete (RFC 8996)" if text in _OLD_VERSIONS else "is not a TLS version"
        raise BadValue(what, "write TLS12 or TLS13")
    return _VERSIONS[text]
