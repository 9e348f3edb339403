"""Read Prometheus' HTTP client configuration: credentials, TLS and proxy of requests.

The format is that of scrape configurations and of promtool's ``--http.config.file``
(https://prometheus.io/docs/prometheus/latest/configuration/configuration/#http_config).
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from promql.client_config import HttpClientConfig
from slos.config_values import line_of_text, tls_version
from slos.document import scan_document
from slos.errors import BadValue, InvalidFile, in_order
from slos.schema import Field, Place, Shape, boolean, expect, read_mapping, read_value

MAX_SECRET = 64 * 1024
"""Bytes of the file of a secret."""
_ANY: Shape = {}


class NamedServerContext(ssl.SSLContext):
    """A TLS context for servers whose certificate has another name than their address."""

    server_name: str

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Wrap as usual, but verify ``server_name``."""
        return super().wrap_bio(*args, **{**kwargs, "server_hostname": self.server_name})


def read_http_client_config(path: str) -> HttpClientConfig:
    """Read the file and the files that it names; raises InvalidFile with all problems."""
    document, problems = scan_document(path)
    place = Place(document, problems)
    reader = partial(read_mapping, _FILE)
    read = read_value(lambda value, at: reader(value, at), document.value, place) or {}
    authorization = read.get("authorization") or read.get("basic_auth")
    if read.get("authorization") and read.get("basic_auth"):
        place.at("basic_auth").refuse("conflicts with authorization", "delete one of them")
    if authorization and not problems:
        try:
            authorization()
        except (OSError, ValueError) as error:
            where = place.at("authorization" if read.get("authorization") else "basic_auth")
            reason = error.strerror if isinstance(error, OSError) else str(error)
            where.refuse(f"has a file that cannot be read: {reason}", "correct its path")
    if problems:
        raise InvalidFile(in_order(problems))
    return HttpClientConfig(authorization, read.get("tls_config"), read.get("proxy_url") or "")


def secret_of(text: str, file: Path | None) -> str:
    """Return a secret, from the first line of its file if there is one.

    Raises OSError, and ValueError for content that no header can hold.
    """
    if file is None:
        return text
    with file.open("rb") as opened:
        content = opened.read(MAX_SECRET + 1)
    if len(content) > MAX_SECRET:
        raise ValueError(f"{file} is larger than {MAX_SECRET >> 10} KiB")
    secret = content.decode("utf-8", "replace").strip()
    if not secret or not secret.isprintable():
        raise ValueError(f"{file} is empty or holds several lines")
    return secret


def _secret(name: str, read: Mapping[str, Any], place: Place) -> tuple[str, Path | None]:
    text, file = read.get(name), read.get(f"{name}_file")
    if (text is None) == (file is None):
        twice = text is not None
        message = f"is given twice: {name}_file is another one" if twice else "is missing"
        fix = "delete one of them" if twice else f"add {name}_file: {name}"
        place.refuse(message, fix, name if twice else f"{name}_file")
    return text or "", Path(place.document.file).parent / file if file else None


def _basic_auth(value: object, place: Place) -> Any:
    read = read_mapping(_BASIC, value, place)
    user, password = _secret("username", read, place), _secret("password", read, place)

    def header() -> str:
        token = f"{secret_of(*user)}:{secret_of(*password)}"
        return f"Basic {base64.b64encode(token.encode()).decode()}"

    return header


def _authorization(value: object, place: Place) -> Any:
    read = read_mapping(_AUTHORIZATION, value, place)
    scheme = read.get("type") or "Bearer"
    if scheme.lower() == "basic":
        place.at("type").refuse("is Basic", "use basic_auth")
    credentials = _secret("credentials", read, place)
    return lambda: f"{scheme} {secret_of(*credentials)}"


def _tls(value: object, place: Place) -> ssl.SSLContext | None:
    before = len(place.problems)
    read = read_mapping(_TLS, value, place)
    folder = Path(place.document.file).parent
    context = NamedServerContext(ssl.PROTOCOL_TLS_CLIENT)
    if name := read.get("server_name"):
        context.server_name = name
    else:
        context = ssl.create_default_context()  # type: ignore[assignment]
    if ca := read.get("ca_file"):
        _load(place.at("ca_file"), lambda: context.load_verify_locations(folder / ca))
    elif name:
        context.load_default_certs()
    chain, key = read.get("cert_file"), read.get("key_file")
    if (chain is None) != (key is None):
        missing = "cert_file" if chain is None else "key_file"
        place.refuse("is missing", f"add {missing}: FILE", missing)
    elif chain and key:
        _load(
            place.at("cert_file"),
            lambda: context.load_cert_chain(folder / chain, folder / key, password=""),
        )
    if read.get("insecure_skip_verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.minimum_version = read.get("min_version") or ssl.TLSVersion.TLSv1_2
    context.maximum_version = read.get("max_version") or ssl.TLSVersion.MAXIMUM_SUPPORTED
    return context if len(place.problems) == before else None


def _load(place: Place, load: Any) -> None:
    try:
        load()
    except OSError as error:
        reason = (error.reason or "not PEM") if isinstance(error, ssl.SSLError) else error.strerror
        place.refuse(f"cannot be used: {reason}", "give PEM files that belong together")


def _proxy(value: object, _: Place) -> str:
    text: str = expect(str, "a URL such as http://proxy:3128", value)
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:  # the message leaves the URL out: it may hold a password
        raise BadValue("is not an http or https address", "write one such as http://proxy:3128")
    return text


def _fields(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, line_of_text, about="", shape=_ANY) for name in names)


_BASIC = _fields("username", "username_file", "password", "password_file")
_AUTHORIZATION = _fields("type", "credentials", "credentials_file")
_TLS = (
    *_fields("ca_file", "cert_file", "key_file", "server_name"),
    Field("insecure_skip_verify", boolean, about="", shape=_ANY),
    Field("min_version", tls_version, about="", shape=_ANY),
    Field("max_version", tls_version, about="", shape=_ANY),
)
_FILE = (
    Field("basic_auth", _basic_auth, about="User and password.", shape=_ANY),
    Field("authorization", _authorization, about="A bearer token.", shape=_ANY),
    Field("tls_config", _tls, about="CA and client certificate.", shape=_ANY),
    Field("proxy_url", _proxy, about="An HTTP proxy.", shape=_ANY),
)
