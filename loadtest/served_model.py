"""Find the only model of an OpenAI-compatible server."""

from __future__ import annotations

import json

from loadtest.settings import LoadEndpoint
from promql.http_client import FetchLimits, HttpError, exchange, new_session, public, read_body

_LIMITS = FetchLimits(10.0, 1 << 20)
_MAX_NAMES = 5


class ServedModelError(Exception):
    """The model of a server is not known; the message has the fix."""


async def served_model(endpoint: LoadEndpoint) -> str:
    """Return the name of the server's only model; raises ServedModelError."""
    if endpoint.api in ("generate", "grpc"):
        raise ServedModelError(f"--api {endpoint.api} needs a model. Fix: give --model NAME.")
    url, body = f"{endpoint.url}/v1/models", bytearray()
    try:
        async with (
            new_session(endpoint.http) as session,
            exchange(session, "GET", url, limits=_LIMITS) as response,
        ):
            await read_body(response, body.extend, url, _LIMITS)
    except HttpError as error:
        raise ServedModelError(f"{error}.") from None
    try:
        names = [str(each["id"]) for each in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        names = []
    if len(names) != 1:
        found = ", ".join(names[:_MAX_NAMES]) or f"no list of models (HTTP {response.status})"
        raise ServedModelError(f"{public(url)} has {found}. Fix: give --model NAME.")
    return names[0]
