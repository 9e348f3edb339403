"""The sidecar as a process, and its loop with failing sources."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from time import monotonic

import aiohttp
import bcrypt
import pytest

from exporter import app as sidecar_module
from exporter.app import watch
from exporter.log import ProblemLog
from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, ModelInfo, Snapshot, SourceError
from exporter.scrape_loop import MIN_PAUSE
from exporter.settings import Settings, load_settings
from exporter.sources import BaseSource, Source
from exporter.store import latency_history
from exporter.store.decode_progress import DecodeProgress
from exporter.store.view import View
from slos.model import Service
from tests.fake_triton import FakeTriton, config, core, fake_triton
from tests.polling import until
from tests.service_example import objective, service
from tokenslo.cli import main

ROOT = Path(__file__).parent.parent
START = re.compile(
    r"tokenslo 0\.\S+: metrics (http://(?:127\.0\.0\.1|0\.0\.0\.0):\d+)/metrics, status \1/\n"
)

SLO = """\
apiVersion: tokenslo/v1
service: chat
owner: inference
selector: {model: chat}
window: 28d
objectives:
  - {name: first-token, indicator: ttft, threshold: 800ms, target: 95%}
"""
FIRST_RESPONSE = """\
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_count{model="chat",version="1"} 3
nv_inference_first_response_histogram_ms_sum{model="chat",version="1"} 900
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="100"} 1
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="500"} 2
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="+Inf"} 3
"""
GAUGE = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="chat",request_type="active",version="1"} 2
nv_trt_llm_request_metrics{model="chat",request_type="max",version="1"} 512
"""


def chat() -> dict[str, object]:
    return {
        "metrics": core(ok=3) + FIRST_RESPONSE + GAUGE,
        "configs": {"chat": config("tensorrtllm")},
    }


async def start(*arguments: str, **environ: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tokenslo", "exporter", *arguments),
        cwd=ROOT,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | environ,
    )


@asynccontextmanager
async def sidecar(
    triton: FakeTriton, *arguments: str, **environ: str
) -> AsyncIterator[tuple[Process, str]]:
    metrics = triton.url.replace("http://", "http://me:secret@") + "/metrics"
    process = await start(
        *("--triton", triton.url, "--listen", "127.0.0.1:0", "--interval", "50ms", *arguments),
        **{"TOKENSLO_TRITON_METRICS": metrics, **environ},
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        match = START.fullmatch(line)
        assert match, line or (await process.communicate())[1].decode()
        yield process, match[1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def eventually(url: str, condition: Callable[[int, str], bool]) -> str:
    """Request a page until its status and text fulfil a condition; return the text."""

    async def wanted() -> str:
        status, text = await get(url)
        return text if condition(status, text) else ""

    return await until(wanted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sidecar_serves_metrics_until_it_is_signalled(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "chat.yaml").write_text(SLO)
    slo = tmp_path / "slo.jsonnet"
    slo.write_text("std.parseYaml(importstr 'chat.yaml')")
    flags = ("--slo", str(slo), "--jpath", str(tmp_path / "vendor"))
    async with fake_triton(**chat()) as triton, sidecar(triton, *flags) as (process, url):
        await eventually(f"{url}/readyz", lambda status, _: status == 200)
        _, metrics = await get(f"{url}/metrics")
        assert 'llm_sequences{model="chat",state="active",version="1"} 2.0\n' in metrics
        assert 'tokenslo_source_up{source="triton"} 1.0\n' in metrics
        _, page = await get(f"{url}/", Accept="text/html")
        _, facts = await get(f"{url}/", Accept="application/json")
        [objective_] = json.loads(facts)["objectives"]
        assert objective_["quality"] == "unavailable"
        assert (
            objective_["note"] == "800ms is not a bucket boundary of the histogram (100ms, 500ms)"
        )

        process.send_signal(number)
        _, errors = await asyncio.wait_for(process.communicate(), 10)
        log = errors.decode()
    assert process.returncode == 0
    measurement, first_token = log.splitlines()
    assert (
        f'level=info msg="scraping {triton.url} and {triton.url}/metrics every 0.05 s"'
        in measurement
    )
    assert "level=warning" in first_token
    assert "objective chat/first-token on chat cannot be measured: 800ms is not a" in first_token
    assert "secret" not in log + metrics + page + facts


async def test_clients_cannot_exhaust_its_open_files_nor_its_log() -> None:
    limited = ("-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-m", "tokenslo", "exporter")
    process = await asyncio.create_subprocess_exec(
        "sh",
        *(*limited, "--triton", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"),
        cwd=ROOT,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    match = START.fullmatch((await process.stdout.readline()).decode())
    assert match
    url = match[1]
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(2):
            for _ in range(250):
                half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                half.sendall(b"GET /metrics HTTP/1.1\r\n")
            for path in ("healthz", "metrics"):
                assert (await get(f"{url}/{path}"))[0] == 200
    process.terminate()
    _, log = await process.communicate()
    assert len(log) < 100_000
    assert log.count(b"closing the longest idle one") == 10


async def test_sidecar_starts_before_triton() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        absent = FakeTriton(url=f"http://127.0.0.1:{closed.getsockname()[1]}")
    async with sidecar(absent) as (process, url):
        assert await get(f"{url}/healthz") == (200, "ok\n")
        text = await eventually(f"{url}/metrics", lambda _, text: "tokenslo_source_up" in text)
        assert 'tokenslo_source_up{source="triton"} 0.0\n' in text
        assert "llm_" not in text
        assert (await get(f"{url}/readyz"))[0] == 503
        process.terminate()
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert errors.decode().count("level=warning") == 1
    assert "refused the connection: nothing listens there" in errors.decode()


async def test_series_that_triton_no_longer_reports_are_withdrawn() -> None:
    async with (
        fake_triton(**chat()) as triton,
        sidecar(triton, "--stale-after", "300ms", "--unready-after", "300ms") as (_, url),
    ):
        await eventually(f"{url}/metrics", lambda _, text: "llm_sequences{" in text)
        for path in ("/metrics", "/v2/health/ready", "/v2/repository/index", "/v2/models/stats"):
            triton.instead[path] = _nothing
        down = 'tokenslo_source_up{source="triton"} 0.0\n'
        # Reasons of unavailable signals may name metrics of the server, such as nv_llm_….
        await eventually(f"{url}/metrics", lambda _, text: "\nllm_" not in text and down in text)
        await eventually(f"{url}/readyz", lambda status, _: status == 503)
        triton.instead.clear()
        await eventually(f"{url}/readyz", lambda status, _: status == 200)


async def _nothing(_: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    return aiohttp.web.Response(status=503)


async def test_wrong_settings_are_one_line_each_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await start("--triton", "http://127.0.0.1:1", "--listen", f"127.0.0.1:{port}")
        out, errors = await process.communicate()
    *log, last = errors.decode().splitlines()
    assert (process.returncode, out) == (2, b"")
    assert all("level=" in line for line in log)
    assert last == (
        f"tokenslo exporter: listen: 127.0.0.1:{port} is in use by another program. "
        "Fix: stop it, or choose another port."
    )


def test_other_machines_are_refused_without_authentication(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("exporter", "--triton", "http://127.0.0.1:1", "--listen", "0.0.0.0:0")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "command line: --listen: 0.0.0.0:0 would serve clients of other machines without "
        "authentication. Fix: give --web-config FILE with basic_auth_users or required client "
        "certificates; or give --allow-unauthenticated if a firewall or a NetworkPolicy limits the "
        "clients.\n"
    )


async def test_sidecar_serves_other_machines_by_its_web_configuration(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(
        f'basic_auth_users: {{a: "{bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()}"}}\n'
    )
    auth = {"Authorization": aiohttp.encode_basic_auth("a", "hunter2")}
    flags = ("--listen", "0.0.0.0:0", "--web-config", str(tmp_path / "web.yaml"))
    async with fake_triton(**chat()) as triton, sidecar(triton, *flags) as (_, url):
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/metrics"))[0] == 401
        assert (await get(f"{url}/metrics", **auth))[0] == 200


async def test_secrets_are_in_no_log_and_on_no_page(tmp_path: Path) -> None:
    secrets = ("hunter2", "sesame", "opensaysme")
    web, http = tmp_path / "web.yaml", tmp_path / "http.yaml"
    stored = bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()
    web.write_text(f'basic_auth_users: {{a: "{stored}"}}\n')
    http.write_text("authorization: {credentials_file: token}\n")
    (tmp_path / "token").write_text("sesame")
    auth = {"Authorization": aiohttp.encode_basic_auth("a", "hunter2")}
    flags = ("--web-config", str(web), "--http-config", str(http), "--log-level", "debug")
    other = {
        "TOKENSLO_VLLM": "http://me:opensaysme@127.0.0.1:1",
        "TOKENSLO_OTLP_ENDPOINT": "http://me:opensaysme@127.0.0.1:1",
        "TOKENSLO_OTLP_TRACES": "127.0.0.1:0",
        "TOKENSLO_OTLP_TRACES_FORWARD": "http://me:opensaysme@127.0.0.1:1/v1/traces",
        "TOKENSLO_OTLP_INTERVAL": "100ms",
    }
    async with (
        fake_triton(**chat()) as triton,
        sidecar(triton, *flags, **other) as (process, url),
    ):
        (tmp_path / "token").write_text("sesame\nsesame")  # cannot be used from here on
        web.write_text("basic_auth_users: {a: hunter2}\n")  # nor can this file be reloaded

        async def failing() -> bool:
            return "credentials cannot be read" in (await get(f"{url}/", **auth))[1]

        await until(failing)
        pages = [
            await get(f"{url}{path}", **{**auth, "Accept": accept})
            for path in ("/", "/metrics", "/readyz")
            for accept in ("text/html", "application/json")
        ]
        process.send_signal(signal.SIGTERM)
        output = b"".join(await process.communicate()).decode()
    assert "is not a bcrypt hash" in output
    assert {status for status, _ in pages} <= {200, 503}
    for secret in (*secrets, stored, base64.b64encode(b"a:hunter2").decode()):
        assert secret not in output
        assert not any(secret in text for _, text in pages)


class Scripted(BaseSource):
    """A source with a list of snapshots and errors, of which it repeats the last."""

    name = "scripted"
    where = "a script"

    def __init__(self, *measurements: Snapshot | Exception) -> None:
        self.remaining = list(measurements)

    async def snapshot(self, now: float) -> Snapshot:
        measurement = self.remaining.pop(0) if len(self.remaining) > 1 else self.remaining[0]
        if isinstance(measurement, Exception):
            raise measurement
        return measurement


def good(value: float = 1.0, model: str = "llama", **parts: SourceError | None) -> Snapshot:
    return Snapshot(
        "scripted",
        (Measurement("kv_utilization", model, "1", "trtllm_iteration", {(): value}),),
        models=(ModelInfo(model, "1"),),
        parts=parts,
    )


def quick(**flags: str) -> Settings:
    given = {"triton": "http://x", "listen": "127.0.0.1:0", "interval": "50ms"} | flags
    return load_settings({name: [text] for name, text in given.items()}, {})


async def watched(
    *sources: Source, wanted: Callable[[str], bool], services: tuple[Service, ...] = ()
) -> str:
    """Run the loop until ``/metrics`` fulfils a condition; return the text."""
    async with watching(*sources, services=services) as url:
        return await eventually(f"{url}/metrics", lambda _, text: wanted(text))


@asynccontextmanager
async def watching(
    *sources: Source, services: tuple[Service, ...] = (), **flags: str
) -> AsyncIterator[str]:
    """Run the loop and give its URL."""
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        watch(
            sources,
            quick(**flags),
            services,
            "1.2.3",
            stop,
            announce=lambda _, url: ready.set_result(url),
        )
    )
    try:
        yield await ready
    finally:
        stop.set()
        await running


LOGGING = """
import logging, sys
from exporter.log import LOG, set_up

set_up(sys.argv[1])
for logger in (LOG, logging.getLogger("hpack.hpack"), logging.getLogger("asyncio")):
    for level in ("debug", "info", "warning", "error"):
        getattr(logger, level)(f"{logger.name} {level}")
"""


@pytest.mark.parametrize(
    ("level", "own", "libraries"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["info", "warning", "error"]),
        ("info", ["info", "warning", "error"], ["info", "warning", "error"]),
        ("error", ["error"], ["error"]),
    ],
)
def test_libraries_never_log_at_debug(level: str, own: list[str], libraries: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING, level], capture_output=True, text=True)
    assert re.findall('msg="(.*)"', done.stderr) == [
        *(f"tokenslo {word}" for word in own),
        *(f"{name} {word}" for name in ("hpack.hpack", "asyncio") for word in libraries),
    ]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [re.sub(r"in \d+ s", "in N s", record.getMessage()) for record in caplog.records]


async def test_each_problem_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tokenslo")
    down = SourceError("refused", "nothing listens there")
    part = SourceError("status", "answered 503")
    source = Scripted(down, down, down, good(), good(statistics=part), good(2.0, statistics=None))
    last = 'llm_kv_cache_utilization_ratio{model="llama",version="1"} 2.0\n'
    text = await watched(source, wanted=lambda text: last in text)
    assert 'tokenslo_source_errors_total{kind="refused",source="scripted"} 3.0' in text
    assert messages(caplog) == [
        "scraping scripted: nothing listens there",
        "scraping scripted: works again; failed 3 times in N s",
        "scraping scripted/statistics: answered 503",
        "scraping scripted/statistics: works again; failed once in N s",
    ]


async def test_a_slow_source_leaves_a_pause_between_its_scrapes() -> None:
    times: list[tuple[float, float]] = []

    class Slow(Scripted):
        async def snapshot(self, now: float) -> Snapshot:
            await asyncio.sleep(2 * quick().interval)  # a scrape that takes longer than that
            times.append((now, monotonic()))
            return await super().snapshot(now)

    async with watching(Slow(good())) as url:
        await eventually(f"{url}/metrics", lambda *_: len(times) >= 5)
    pauses = [began - ended for (_, ended), (began, _) in pairwise(times)]
    assert min(pauses) >= 0.95 * MIN_PAUSE * quick().interval


async def test_the_status_page_has_a_chart_of_the_latencies_that_were_scraped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Growing(Scripted):
        count = 0.0

        async def snapshot(self, now: float) -> Snapshot:
            self.count += 10.0
            ttft = Distribution((0.1, 0.5, inf), (0.0, self.count, self.count), self.count)
            measurement = Measurement("ttft", "llama", "1", "wire", {(): ttft})
            return replace(good(), measurements=(measurement,))

    monkeypatch.setattr(sidecar_module, "CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(latency_history, "STEP", 0.2)
    async with watching(Growing(good())) as url:
        page = await eventually(f"{url}/", lambda _, text: '<path class="p95"' in text)
    assert 'aria-label="TTFT of llama version 1, last ten minutes: p95 from 480 ms' in page


async def test_a_defect_in_a_source_is_logged_once_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Scripted(ZeroDivisionError("oops"), ZeroDivisionError("oops"), good())
    await watched(broken, wanted=lambda text: "llm_kv_cache_utilization_ratio" in text)
    [first] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert first.getMessage() == "scraping scripted: internal error, please report it"
    assert first.exc_info


async def test_a_defect_in_evaluating_objectives_does_not_stop_the_scrapes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def snapshot(value: float) -> Snapshot:
        absurd = Distribution((-1.0, 0.5, inf), (0.0, 1.0, 2.0), 1.0)
        ttft = Measurement("ttft", "llama", "1", "vllm_histogram", {(): absurd})
        return replace(good(value), measurements=(*good(value).measurements, ttft))

    chat = service(objective("ttft"))
    source = Scripted(snapshot(1.0), snapshot(1.0), snapshot(2.0))
    await watched(source, services=(chat,), wanted=lambda text: 'version="1"} 2.0' in text)
    [first] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert first.getMessage() == (
        "logging which objectives can be measured: internal error, please report it"
    )


async def test_the_gateway_page_has_the_gauges_until_their_source_is_silent() -> None:
    line = 'vllm:kv_cache_usage_perc{model_name="llama",version="1"} 0.5'
    scripted = Scripted(good(0.5))
    async with watching(scripted, **{"gateway-metrics": "vllm", "stale-after": "1s"}) as url:
        text = await eventually(f"{url}/gateway", lambda _, text: line in text)
        assert [each for each in text.splitlines() if not each.startswith("#")] == [line]
        assert line in (await get(f"{url}/metrics"))[1]
        scripted.remaining = [SourceError("refused", "nothing listens there")]

        async def withdrawn() -> bool:
            return await get(f"{url}/gateway") == (200, "")

        await until(withdrawn)
        assert line not in (await get(f"{url}/metrics"))[1]


async def test_without_gateway_metrics_there_is_no_gateway_page() -> None:
    async with watching(Scripted(good())) as url:
        status, text = await get(f"{url}/gateway")
    assert status == 404
    assert "with --gateway-metrics, /gateway" in text


async def test_a_background_task_that_fails_is_restarted_counted_and_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([ZeroDivisionError("oops")])
    update = DecodeProgress.update

    def failing(self: DecodeProgress, view: View, now: float) -> None:
        if error := next(calls, None):
            raise error
        update(self, view, now)

    monkeypatch.setattr(DecodeProgress, "update", failing)
    wanted = 'tokenslo_ready{layer="decode",model="llama",source="",version="1"} 1.0'
    shown = good()
    idle = Measurement("sequences_active", "llama", "1", "trtllm_iteration", {(): 0.0})
    source = Scripted(replace(shown, measurements=(*shown.measurements, idle)))
    async with watching(source) as url:
        text = await eventually(f"{url}/metrics", lambda _, text: wanted in text)
        page = (await get(f"{url}/"))[1]
    assert 'tokenslo_task_restarts_total{task="progress"} 1.0' in text
    assert 'tokenslo_task_restarts_total{task="read scripted"} 0.0' in text
    assert "<code>progress</code>" in page
    assert "ZeroDivisionError" in page
    [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert record.getMessage().startswith("background task progress: failed: ZeroDivisionError")
    assert record.exc_info


async def test_a_layer_is_logged_when_it_becomes_unready_and_when_it_is_ready_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tokenslo")
    monkeypatch.setattr(sidecar_module, "CHECK_INTERVAL", 0.02)

    def loaded(ready: bool, value: float) -> Snapshot:
        info = ModelInfo("llama", "1", ready=ready, reason="" if ready else "UNLOADING")
        return replace(good(value), models=(info,))

    source = Scripted(*[loaded(True, 1.0)] * 3, *[loaded(False, 2.0)] * 5, loaded(True, 3.0))
    async with watching(source) as url:
        await eventually(f"{url}/metrics", lambda _, text: 'version="1"} 3.0' in text)
        await until(lambda: len(messages(caplog)) >= 2)
    first, second = messages(caplog)
    assert first == "readiness of model llama: model llama is not ready: UNLOADING"
    assert second.startswith("readiness of model llama: works again; failed ")


async def test_objectives_are_logged_once_for_each_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tokenslo")
    chat = service(objective("kv_headroom"), selector={"cluster": "eu"})
    source = Scripted(
        SourceError("refused", "nothing listens there"), good(), good(model="b"), good(), good(2.0)
    )
    await watched(source, services=(chat,), wanted=lambda text: 'version="1"} 2.0' in text)
    about_objectives = [line for line in messages(caplog) if line.startswith("objective")]
    note = f"KV-cache utilization: {METHODS['trtllm_iteration'].note}"
    assert about_objectives == [
        f"objective chat/kv-headroom on {model} is measured, quality exact: {note}"
        for model in ("llama", "b")
    ]


def test_an_episode_that_never_began_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tokenslo")
    ProblemLog().recovered("anything", 1.0)
    assert messages(caplog) == []
