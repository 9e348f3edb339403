"""Detect the kind of a server by its responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from exporter.samples import SourceError
from exporter.sources.exposition.by_model import MODEL_LIST_FAMILY
from exporter.sources.fetch import fetch, parse_json
from exporter.sources.sglang.sglang_source import ENABLE
from exporter.sources.vllm.vllm_source import STATS
from promql.http_client import FetchLimits, HttpResponse, new_session, public

_ENDINGS = ("/prometheus/metrics", "/metrics", "/v1", "/v2")
TAP = "tap"
_SILENT = ("refused", "unreachable", "timeout", "tls")
_READ_ONCE = (
    "it delivers each iteration record and request timing once: a running sidecar misses those "
    "that were read here"
)

Get = Callable[[str], Awaitable[HttpResponse | None]]


@dataclass(frozen=True, slots=True)
class DetectedServer:
    """The kind of server at an address; ``setting`` is the sidecar's setting for it, or empty.

    A server that only a tap can measure has the setting ``tap``.  ``what`` is its name, or the
    reason why it was not detected.
    """

    url: str
    setting: str
    what: str
    note: str = ""


async def detect_servers(urls: Sequence[str], limits: FetchLimits) -> tuple[DetectedServer, ...]:
    """Detect the server at each address, in order."""
    async with new_session() as session:

        def get_from(where: str) -> Get:
            async def get(path: str) -> HttpResponse | None:
                try:
                    return await fetch(session, "GET", where + path, limits=limits)
                except SourceError as error:
                    if error.kind in _SILENT:
                        raise
                    return None

            return get

        return tuple([await detect_server(url, get_from(base(url))) for url in urls])


async def detect_server(url: str, get: Get) -> DetectedServer:
    """Detect the server at ``url`` from its responses; ``get`` returns that of a path, or None.

    Endpoints whose records can be read only once come last, unless ``url`` is such an endpoint.
    """
    detectors = (_triton, _openai, _metrics)
    try:
        for detect in reversed(detectors) if url.rstrip("/").endswith("/metrics") else detectors:
            if found := await detect(get):
                setting, what = found
                note = _READ_ONCE if setting == "trtllm" else ""
                return DetectedServer(public(url), setting, what, note)
        if found := await _tapped(get):
            what, why = found
            return DetectedServer(public(url), TAP, what, f"{why}; a tap measures its streams")
    except SourceError as error:
        return DetectedServer(public(url), "", str(error))
    what = "answers, but is not a supported server"
    return DetectedServer(public(url), "", f"{public(url)} {what}")


async def _triton(get: Get) -> tuple[str, str] | None:
    document = _document(await get("/v2"))
    if isinstance(document, dict) and "extensions" in document:
        return "triton", f"Triton {_version(document)}".rstrip()
    return None


async def _openai(get: Get) -> tuple[str, str] | None:
    document = _document(await get("/v1/models"))
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list):
        return None
    version = _version(_document(await get("/version")))
    # trtllm-serve's owner (tensorrt_llm/serve/openai_protocol.py): a request for /metrics would
    # consume iteration records.
    if any(isinstance(one, dict) and one.get("owned_by") == "tensorrt_llm" for one in models):
        return "trtllm", f"trtllm-serve {version}".rstrip()
    return await _metrics(get, version)


async def _metrics(get: Get, version: str = "") -> tuple[str, str] | None:
    """Detect a server by the metrics it publishes; trtllm-serve publishes JSON at this path."""
    answer = await get("/metrics")
    if answer is None:
        return None
    if MODEL_LIST_FAMILY.encode() in answer.body:
        return "triton-metrics", "Triton's metrics"
    if b"# TYPE vllm:" in answer.body:
        return "vllm", f"vLLM {version}".rstrip()
    if b"# TYPE sglang:" in answer.body:
        return "sglang", "SGLang"
    if isinstance(_document(answer), list):
        return "trtllm", f"trtllm-serve {version}".rstrip()
    return None


async def _tapped(get: Get) -> tuple[str, str] | None:
    """Detect a server that only a tap can measure; return its name and the reason."""
    answer = await get("/metrics")
    for prefix, what in _NO_SOURCE.items():
        if answer is not None and f"# TYPE {prefix}".encode() in answer.body:
            return what, "its metrics are not read"
    document = _document(await get("/v1/models"))
    models = document.get("data") if isinstance(document, dict) else None
    if isinstance(models, list):
        owners = [one.get("owned_by") for one in models if isinstance(one, dict)]
        if "vllm" in owners:
            version = _version(_document(await get("/version")))
            return f"vLLM {version}".rstrip(), f"its statistics are off: {STATS}"
        if "sglang" in owners:
            return "SGLang", f"its metrics are off: {ENABLE}"
        return "an OpenAI-compatible server", "it publishes no metrics that are read"
    if isinstance(_document(await get("/cluster_info")), dict):
        return _ORCHESTRATOR, "its metrics count requests, not tokens"
    return None


_ORCHESTRATOR = "the orchestrator of a disaggregated trtllm-serve"
_NO_SOURCE = {"dynamo_frontend_": "Dynamo's frontend"}


def _document(answer: HttpResponse | None) -> object:
    try:
        return parse_json(answer, "") if answer else None
    except SourceError:
        return None


def _version(document: object) -> str:
    version = document.get("version") if isinstance(document, dict) else None
    return version[:40] if isinstance(version, str) and version.isprintable() else ""


def base(url: str) -> str:
    """Return the address of a server without the path of a known endpoint."""
    address = url.rstrip("/")
    for ending in _ENDINGS:
        address = address.removesuffix(ending)
    return address
