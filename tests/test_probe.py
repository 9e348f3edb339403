"""A request for one token: what is sent, what counts as an answer, and what follows."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web

from exporter.samples import Measurement, Snapshot
from exporter.settings import load_settings
from exporter.sources.factory import configured
from exporter.sources.probe import (
    ID,
    Probe,
    ProbeState,
    SendProbe,
    families,
    of_openai,
    of_triton,
    without_probes,
)
from exporter.sources.tap_source import TapSource
from exporter.web.collector import expose
from promql.http_client import new_session
from slos.errors import InvalidFile
from tests.fake_triton import FakeTriton, config, fake_triton
from tests.polling import until
from tests.tcp_server import listening
from tests.views import view

ROOT = Path(__file__).parent.parent
TEXT = {"name": "text_input", "data_type": "TYPE_STRING"}
STREAM = {"name": "stream", "optional": True}
TOKEN = b'data: {"text_output":"a"}\n\n'
SECRET = "the prompt of a client"


@dataclass
class Model:
    """A model that responds as a test sets it, and records requests."""

    body: bytes = TOKEN
    status: int = 200
    delay: float = 0.0
    sent: list[dict[str, object]] = field(default_factory=list)

    async def __call__(self, request: web.Request) -> web.Response:
        self.sent.append(await request.json())
        await asyncio.sleep(self.delay)
        return web.Response(body=self.body, status=self.status)


@asynccontextmanager
async def serving(
    model: Model, decoupled: bool = True, inputs: tuple[object, ...] = (TEXT, STREAM)
) -> AsyncIterator[FakeTriton]:
    configs = {"chat": config("python", decoupled=decoupled, input=list(inputs))}
    async with fake_triton(configs=configs) as fake:
        for verb in ("generate", "generate_stream"):
            fake.instead[f"/v2/models/chat/{verb}"] = model
        fake.instead["/v1/completions"] = model
        yield fake


async def probed(
    send: SendProbe, *, times: int = 1, moves: bool = False, seconds: float = 5.0
) -> tuple[ProbeState, str]:
    """Probe ``times`` times; return the last state and the probe's lines on ``/metrics``."""
    probe = Probe("chat", send, interval=60.0, timeout=seconds, produced_since=lambda _: moves)
    async with new_session() as session:
        for _ in range(times):
            await probe.send(session)
    shown = expose(view(sources=(), models=()), "1", more=families([probe])).body.decode()
    lines = (line for line in shown.splitlines() if line.startswith("tokenslo_probe"))
    return probe.state, "\n".join(lines)


async def test_streaming_model_gets_a_request_for_one_token() -> None:
    model = Model()
    async with serving(model) as fake:
        outcome, text = await probed(of_triton(fake.url))
    assert outcome == ProbeState(True, "")
    assert model.sent[0] == {
        "id": ID,
        "max_tokens": 1,
        "text_input": "Hi",
        "stream": True,
    }
    assert fake.requested.count("/v2/models/chat/generate_stream") >= 1
    assert 'tokenslo_probe_success{model="chat"} 1.0' in text
    assert 'tokenslo_probe_requests_total{model="chat",result="ok"} 1.0' in text
    assert 'tokenslo_probe_duration_seconds{model="chat"} 0.' in text


async def test_model_without_streaming_gets_a_unary_request() -> None:
    model = Model(body=b'{"text_output":"a"}')
    async with serving(model, decoupled=False) as fake:
        outcome, _ = await probed(of_triton(fake.url))
    assert outcome == ProbeState(True, "")
    assert "/v2/models/chat/generate_stream" not in fake.requested
    assert model.sent[0]["stream"] is False


async def test_openai_server_gets_a_completion_request() -> None:
    model = Model(body=b'{"choices":[{"text":"a"}]}')
    async with serving(model) as fake:
        outcome, _ = await probed(of_openai(fake.url))
    assert outcome == ProbeState(True, "")
    assert model.sent[0] == {
        "model": "chat",
        "prompt": "Hi",
        "max_tokens": 1,
        "user": ID,
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (f'data: {{"error":"{SECRET}"}}\n\n'.encode(), 200),
        (TOKEN + f'data: {{"error":"{SECRET}"}}\n\n'.encode(), 200),
        (f'data: {{"error":"{SECRET}"}}\n\n'.encode(), 400),
        (b"", 200),
        (b"data: [1]\n\n", 200),
        (b"data: {\n\n", 200),
        (b"<html>", 200),
        (b"data: " + b"[" * 60_000, 200),
        (b"x" * 100_000, 200),
    ],
)
async def test_invalid_response_is_a_failure_that_is_not_retried(
    body: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Model(body, status)) as fake:
        outcome, text = await probed(of_triton(fake.url), moves=True)
    assert outcome.ready is True  # one failure is none yet
    assert outcome.reason
    assert 'tokenslo_probe_requests_total{model="chat",result="failed"}' in text
    assert 'tokenslo_probe_success{model="chat"} 0.0' in text
    assert SECRET not in outcome.reason + text + caplog.text


async def test_three_failures_in_a_row_are_not_ready() -> None:
    async with serving(Model(status=500)) as fake:
        outcome, _ = await probed(of_triton(fake.url), times=3)
    where = f"{fake.url}/v2/models/chat/generate_stream"
    assert outcome == ProbeState(False, f"{where} answered 500 (3 in a row)")


@pytest.mark.parametrize("model", [Model(delay=5), Model(status=503), Model(status=429)])
async def test_a_busy_server_stays_ready_and_a_hung_one_does_not(model: Model) -> None:
    async with serving(model) as fake:
        send = of_triton(fake.url)
        busy, text = await probed(send, times=3, moves=True, seconds=0.1)
        assert busy.ready is True
        assert busy.reason.endswith("but decoding progresses: the server is busy")
        assert 'tokenslo_probe_requests_total{model="chat",result="busy"} 3.0' in text
        hung, _ = await probed(send, times=3, moves=False, seconds=0.1)
        assert hung.ready is False


async def test_model_with_unsupported_inputs_is_not_probed() -> None:
    model = Model()
    async with serving(model, inputs=(TEXT, {"name": "image"})) as fake:
        outcome, text = await probed(of_triton(fake.url))
    assert outcome == ProbeState(
        None, "chat cannot be probed: it requires the unsupported input image"
    )
    assert (model.sent, text) == ([], "")


async def test_probes_are_sent_one_at_a_time_and_an_interval_apart() -> None:
    running, overlaps, sent = 0, 0, 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal running, overlaps, sent
        sent += 1
        overlaps += running > 0
        running += 1
        await asyncio.sleep(0.15 if sent < 3 else 0)  # at first longer than the interval
        running -= 1
        return web.Response(body=TOKEN)

    async with serving(Model()) as fake:
        fake.instead["/v2/models/chat/generate_stream"] = slow
        probe = Probe(
            "chat", of_triton(fake.url), interval=0.1, timeout=5.0, produced_since=lambda _: False
        )
        started = monotonic()
        task = asyncio.create_task(probe.run())
        await until(lambda: sent == 8)
        task.cancel()
    assert overlaps == 0
    assert monotonic() - started > 7 * 0.1


def measurement(signal: str, model: str = "chat") -> Measurement:
    return Measurement(signal, model, "1", "triton_counters", {(): 3.0})


def test_server_counters_of_a_probed_model_are_withheld() -> None:
    """The request of the sidecar would count as a client's."""
    kept = (measurement("itl"), measurement("kv_utilization"), measurement("requests", "other"))
    snapshot = Snapshot("triton", (measurement("requests"), measurement("ttft"), *kept))
    kept_snapshot = without_probes(snapshot, ("chat",))
    assert kept_snapshot.measurements == kept
    assert [(gap.signal, gap.model) for gap in kept_snapshot.missing] == [
        ("requests", "chat"),
        ("ttft", "chat"),
    ]
    for source in ("taps", "traces"):  # they see which request is ours
        seen = replace(snapshot, source=source)
        assert without_probes(seen, ("chat",)) == seen
    assert without_probes(snapshot, ()) == snapshot


def test_probe_requires_a_tap_or_traces() -> None:
    flags = {"triton": ["http://127.0.0.1:8000"], "probe": ["chat"]}
    with pytest.raises(InvalidFile, match="counters would include probes"):
        load_settings(flags, {})
    load_settings({**flags, "tap": ["proxy=:9000=127.0.0.1:8000"]}, {})


def test_probe_requires_a_server_url() -> None:
    flags = {"triton-metrics": ["http://127.0.0.1:8002/metrics"], "probe": ["chat"]}
    with pytest.raises(InvalidFile, match="--probe: there is no server to probe"):
        load_settings(flags, {})


def test_probe_id_changes_at_every_start() -> None:
    command = [sys.executable, "-c", "from exporter.sources.probe import ID; print(ID)"]
    ids = {subprocess.check_output(command, cwd=ROOT, text=True).strip() for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch("tokenslo-probe-[0-9a-f]{16}", one) for one in ids)


async def test_client_requests_are_never_counted_as_probes() -> None:
    """Neither by the name that every probe's id begins with, nor by any id without --probe."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        body = b'{"choices":[{"text":"a","finish_reason":"stop"}]}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await reader.read()
        writer.close()

    async with listening(serve) as port:
        address = f"127.0.0.1:{port}"
        flags = {"vllm": [f"http://{address}"], "tap": [f"proxy=127.0.0.1:0={address}"]}
        for more, counted in (
            ({}, ["tokenslo-probe", ID, ""]),
            ({"probe": ["m"]}, ["tokenslo-probe"]),
        ):
            sources = configured(load_settings({**flags, **more}, {}))
            (taps,) = (source for source in sources if isinstance(source, TapSource))
            async with taps:
                (tap,) = re.findall(r"proxy=127.0.0.1:([0-9]+)", taps.where)
                for user in (*counted, *([ID] if more else [])):
                    await asyncio.to_thread(_complete, int(tap), user)
                for _ in range(2):  # series are reported from zero
                    snapshot = await taps.snapshot(0.0)
                    requests = sum(
                        value
                        for measurement in snapshot.measurements
                        if measurement.signal == "requests"
                        for value in measurement.samples.values()
                        if isinstance(value, float)
                    )
            assert requests == len(counted)


def _complete(port: int, user: str) -> None:
    request = {"model": "m", "prompt": "Hi", "user": user}
    urllib.request.urlopen(
        urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(request).encode(),
            {"Content-Type": "application/json"},
        ),
        timeout=10,
    ).read()
