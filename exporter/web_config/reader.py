"""Read a web configuration file, with every problem at its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.web_config import server_tls
from exporter.web_config.server_tls import ServerTls
from exporter.web_config.web_config import RequestRate, WebConfig
from slos.document import scan_document
from slos.durations import parse_duration
from slos.errors import BadValue, InvalidFile, in_order
from slos.schema import Field, Place, Shape, boolean, expect, integer, read_mapping, read_value

MAX_USERS = 100
MIN_COST, MAX_COST = 4, 16
"""Bounds of bcrypt's cost: one check takes 2 ** cost rounds, 4 s at 16."""
_HASH = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_HASH_FIX = "write a bcrypt hash in quotes, as `htpasswd -nBC 10 USER` prints it"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that the format permits, with their values if those are limited."""
_ANY: Shape = {}


def read_web_config(path: str) -> WebConfig:
    """Read the file and the certificates that it names; raises InvalidFile with all problems."""
    document, problems = scan_document(path)
    place = Place(document, problems)
    found = read_value(lambda value, at: read_mapping(_FILE, value, at), document.value, place)
    if not problems and found.get("tls_server_config"):
        at = place.at("tls_server_config")
        context = read_value(server_tls.new_context, found["tls_server_config"], at)
        found["context"] = context
    if problems:
        raise InvalidFile(in_order(problems))
    http = found.get("http_server_config") or {}
    return WebConfig(
        found.get("tls_server_config"),
        found.get("context"),
        http.get("headers") or {},
        found.get("basic_auth_users") or {},
        found.get("rate_limit"),
    )


def _tls(value: object, place: Place) -> ServerTls | None:
    return server_tls.read_tls(value, place, Path(place.document.file).parent)


def _http(value: object, place: Place) -> dict[str, Any]:
    return read_mapping(_HTTP, value, place)


def _headers(value: object, place: Place) -> dict[str, str]:
    known = ", ".join(_HEADERS)
    given = expect(dict, f"a mapping of {known} to their values", value)
    found = {}
    for name, text in given.items():
        at = place.at(name)
        if name not in _HEADERS:
            at.refuse("is not a header that the format permits", f"use {known}")
        elif (read := read_value(_header, text, at)) is not None:
            allowed = _HEADERS[name]
            if allowed and read not in allowed:
                at.refuse(f"is not {' or '.join(allowed)}", f"write {' or '.join(allowed)}")
            found[name] = read
    return found


def _header(value: object, _: Place) -> str:
    text: str = expect(str, "the value of the header, in quotes", value)
    if _CONTROL.search(text) or not text.isascii():
        raise BadValue("holds control or non-ASCII characters", "write printable ASCII")
    return text


def _users(value: object, place: Place) -> dict[str, str]:
    users = expect(dict, "a mapping of user names to bcrypt hashes", value)
    if len(users) > MAX_USERS:
        raise BadValue(
            f"has more than {MAX_USERS} users", "use client certificates for many clients"
        )
    found = {}
    for name, text in users.items():
        at = place.at(name)
        if not name or ":" in name or _CONTROL.search(name):
            at.refuse("is not a user name", "write one without colons and control characters")
        elif (read := read_value(_bcrypt_hash, text, at)) is not None:
            found[name] = read
    return found


def _bcrypt_hash(value: object, _: Place) -> str:
    # No message shows the value: it may be a password.
    match = _HASH.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise BadValue("is not a bcrypt hash", _HASH_FIX)
    if not MIN_COST <= int(match[1]) <= MAX_COST:
        raise BadValue(
            f"has a cost that is not from {MIN_COST} to {MAX_COST}",
            "hash the password again with a cost of 10",
        )
    return match[0]


def _rate_limit(value: object, place: Place) -> RequestRate | None:
    read = read_mapping(_RATE, value, place)
    if not read.get("interval"):
        return None
    if not read.get("burst"):
        place.refuse("admits no request, because burst is missing or 0", "add burst: 20", "burst")
    return RequestRate(read["interval"], read.get("burst") or 0)


def _interval(value: object, _: Place) -> float:
    if value == 0:
        return 0.0
    return float(parse_duration(expect(str, "a duration such as 100ms, or 0 for no limit", value)))


_HTTP = (
    Field("http2", boolean, about="Has no effect: the sidecar serves HTTP/1.1 only.", shape=_ANY),
    Field("headers", _headers, about=f"Response headers: {', '.join(_HEADERS)}.", shape=_ANY),
)
_RATE = (
    Field("interval", _interval, about="Time per request; 0 for no limit.", shape=_ANY),
    Field("burst", integer(0, 1_000_000), about="Requests permitted at once.", shape=_ANY),
)
_FILE = (
    Field("tls_server_config", _tls, about="TLS and client certificates.", shape=_ANY),
    Field("http_server_config", _http, about="Response headers.", shape=_ANY),
    Field("basic_auth_users", _users, about="User names and bcrypt hashes.", shape=_ANY),
    Field("rate_limit", _rate_limit, about="Limit of requests per listener.", shape=_ANY),
)
