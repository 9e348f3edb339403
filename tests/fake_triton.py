"""A fake of Triton's HTTP API and metrics port with the responses that a test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from exporter.samples import Measurement, Missing, Snapshot
from exporter.sources.triton.triton_source import TritonSource
from promql.http_client import FetchLimits
from tests.fake_server import serving

NO_MODELS = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def config(backend: str, *, decoupled: bool = True, **more: object) -> dict[str, object]:
    platform = "ensemble" if backend == "ensemble" else ""
    return {
        "backend": "" if platform else backend,
        "platform": platform,
        "model_transaction_policy": {"decoupled": decoupled},
        **more,
    }


def ensemble(*steps: str, decoupled: bool = False) -> dict[str, object]:
    scheduling = {"step": [{"model_name": step, "model_version": -1} for step in steps]}
    return config("ensemble", decoupled=decoupled, ensemble_scheduling=scheduling)


def ready(*names: str, version: str = "1") -> list[dict[str, str]]:
    return [{"name": name, "version": version, "state": "READY"} for name in names]


def stats(name: str, *, ok: int, fail: int = 0, seconds: float = 0.0, queue: float = 0.0,
          version: str = "1") -> dict[str, object]:  # fmt: skip
    counted = {
        "success": {"count": ok, "ns": round(seconds * 1e9)},
        "fail": {"count": fail, "ns": 0},
        "queue": {"count": ok, "ns": round(queue * 1e9)},
    }
    return {"name": name, "version": version, "inference_stats": counted}


@dataclass
class FakeTriton:
    """Responses of a fake Triton; ``instead`` replaces the response to a path.

    A model with a configuration is ready in version 1 unless ``index`` differs.
    """

    metrics: str = NO_MODELS
    configs: dict[str, object] = field(default_factory=dict)
    stats: list[object] = field(default_factory=list)
    index: list[dict[str, str]] | None = None
    instead: dict[str, Handler] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requested.append(request.path)
        if request.path in self.instead:
            return await self.instead[request.path](request)
        match request.path.strip("/").split("/"):
            case ["metrics"]:
                return web.Response(text=self.metrics)
            case ["v2", "health", "ready"]:
                return web.Response()
            case ["v2", "repository", "index"] if request.method == "POST":
                index = ready(*self.configs) if self.index is None else self.index
                return web.json_response(index)
            case ["v2", "models", "stats"]:
                return web.json_response({"model_stats": self.stats})
            case ["v2", "models", *name, "config"] if "/".join(name) in self.configs:
                return web.json_response(self.configs["/".join(name)])
        return web.json_response({"error": "no such thing"}, status=404)

    def source(self, **options: object) -> TritonSource:
        options.setdefault("limits", FetchLimits(timeout=5.0))
        return TritonSource(self.url, f"{self.url}/metrics", **options)  # type: ignore[arg-type]


@asynccontextmanager
async def fake_triton(**answers: object) -> AsyncIterator[FakeTriton]:
    fake = FakeTriton(**answers)  # type: ignore[arg-type]
    async with serving(fake.handle) as fake.url:
        yield fake


async def scrape(now: float = 100.0, options: Mapping[str, object] | None = None,
               **answers: object) -> Snapshot:  # fmt: skip
    """Return one snapshot of a fake Triton with these answers."""
    async with fake_triton(**answers) as fake, fake.source(**(options or {})) as source:
        return await source.snapshot(now)


def found(snapshot: Snapshot, model: str, version: str = "1") -> dict[str, Measurement | Missing]:
    """Return a model's signals in a snapshot: the sample of the best rank, or the reason."""
    from exporter.methods import METHODS

    by_signal: dict[str, Measurement | Missing] = {}
    for gap in snapshot.missing:
        if (gap.model, gap.version) == (model, version):
            by_signal[gap.signal] = gap
    for measurement in sorted(snapshot.measurements, key=lambda one: -METHODS[one.method].rank):
        if (measurement.model, measurement.version) == (model, version):
            by_signal[measurement.signal] = measurement
    return by_signal


def outcomes(measurement: Measurement | Missing) -> dict[str, object]:
    """Return values by "outcome reason", without outcomes at zero."""
    assert isinstance(measurement, Measurement), measurement
    return {
        " ".join(word for _, word in key).strip(): n
        for key, n in measurement.samples.items()
        if n or measurement.signal != "requests"
    }


def core(model: str = "chat", version: str = "1", *, ok: float = 0, backend: float = 0,
         rejected: float = 0, canceled: float = 0, other: float = 0, seconds: float = 0.0,
         queue: float = 0.0, labels: str = "") -> str:  # fmt: skip
    """Return Triton's own metrics of a model, as Triton writes them."""
    inner = f'model="{model}",{labels}version="{version}"'
    failures = {"OTHER": other, "CANCELED": canceled, "BACKEND": backend, "REJECTED": rejected}
    lines = [
        "# TYPE nv_inference_request_success counter",
        f"nv_inference_request_success{{{inner}}} {ok}",
        "# TYPE nv_inference_request_failure counter",
        *(
            f'nv_inference_request_failure{{model="{model}",{labels}reason="{reason}",'
            f'version="{version}"}} {count}'
            for reason, count in failures.items()
        ),
        "# TYPE nv_inference_request_duration_us counter",
        f"nv_inference_request_duration_us{{{inner}}} {round(seconds * 1e6)}",
        "# TYPE nv_inference_queue_duration_us counter",
        f"nv_inference_queue_duration_us{{{inner}}} {round(queue * 1e6)}",
    ]
    return "\n".join(lines) + "\n"
