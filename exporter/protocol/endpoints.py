"""Classify requests by method and path: the API, or the reason why they are not counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from exporter.protocol import kserve_http
from exporter.protocol.events import Endpoint
from exporter.protocol.json_scan import name
from exporter.protocol.response import KSERVE, MESSAGES, OPENAI, RESPONSES, SGLANG, ApiFormat

OTHER: Final = "endpoint"
"""The reason of a request to an endpoint that no table here names."""

_METHODS: Final = (b"POST", b"PUT")
"""The methods of inference requests."""

_BY_PATH_END: Final[Mapping[str, tuple[Endpoint, ApiFormat]]] = {
    "/v1/chat/completions": ("chat", OPENAI),
    "/v1/completions": ("completions", OPENAI),
    "/v1/responses": ("responses", RESPONSES),
    "/v1/messages": ("messages", MESSAGES),
    "/generate": ("sglang_generate", SGLANG),
}
_UNSUPPORTED: Final[Mapping[str, str]] = {
    "/inference/v1/generate": "token_generate",
    "/embeddings": "embeddings",
    "/embed": "embeddings",
    "/encode": "embeddings",
    "/pooling": "pooling",
    "/classify": "pooling",
    "/score": "pooling",
    "/rerank": "pooling",
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/translations": "audio",
    "/v1/audio/speech": "audio",
    "/v1/images/generations": "images",
    "/v1/images/edits": "images",
    "/v1/videos": "images",
    "/v1/batches": "batches",
    "/v1/messages/batches": "batches",
    "/tokenize": "tokenize",
    "/detokenize": "tokenize",
    "/v1/messages/count_tokens": "tokenize",
}
"""Reasons by the end of a path; each is a value of the label ``reason``."""

_KSERVE_PREFIX = b"/v2/models/"
_KSERVE_PATH = re.compile(rb"/v2/models/([^/]+)(?:/versions/([^/]+))?/([a-z_]+)")
_MANAGEMENT = re.compile(
    rb"/v2/(?:repository|logging|systemsharedmemory|cudasharedmemory|trace"
    rb"|models/[^/]+(?:/versions/[^/]+)?/trace)(?:/.*)?"
)
"""Triton's administrative endpoints, which run no inference."""
_ORIGIN = re.compile(rb"(?i:https?)://[^/?#]*")
_GRPC_MANAGEMENT = (b"/inference.GRPCInferenceService/", b"/grpc.health.", b"/grpc.reflection.")


class Target(NamedTuple):
    """The requested endpoint, and the model if the path names it."""

    endpoint: Endpoint
    api: ApiFormat
    model: str = ""
    version: str = ""


def path_of(target: bytes) -> bytes:
    """Return the path of a request's target, which may be a whole URL, without the query."""
    origin = _ORIGIN.match(target)
    path = target[origin.end() :] if origin else target
    return path.partition(b"?")[0].partition(b"#")[0]


def classify(method: bytes, path: bytes) -> Target | str:
    """Return the target of a request, or the reason why it is skipped.

    The reason is empty for requests that run no inference.
    """
    if method not in _METHODS:
        return ""
    if match := _KSERVE_PATH.fullmatch(path):
        endpoint = kserve_http.ENDPOINTS.get(match[3].decode())
        if endpoint and method == b"POST":
            model, version = (name(_text(part or b"")) for part in (match[1], match[2]))
            return Target(endpoint, KSERVE, model, version)
    if _MANAGEMENT.fullmatch(path):
        return ""
    if _KSERVE_PREFIX in path:
        return OTHER
    text = _text(path)
    for end, reason in _UNSUPPORTED.items():
        if text.endswith(end):
            return reason
    for end, (endpoint, api) in _BY_PATH_END.items():
        if text.endswith(end) and (method == b"POST" or api is SGLANG):
            return Target(endpoint, api)
    return OTHER


def unsupported_call(method: bytes, path: bytes, content_type: bytes) -> str:
    """Return the reason for skipping an HTTP/2 request without a supported gRPC call.

    The reason is empty for requests that run no inference.
    """
    if content_type.startswith(b"application/grpc"):
        return "" if path.startswith(_GRPC_MANAGEMENT) else "grpc_method"
    found = classify(method, path_of(path))
    return found if isinstance(found, str) else "http2"


def _text(path: bytes) -> str:
    return unquote_to_bytes(path).decode("utf-8", "replace")
