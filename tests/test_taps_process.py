"""The tap process: its messages, its drain, and its restarts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import aiohttp
import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.families import MetricFamily
from exporter.process_metrics import tap_families
from exporter.protocol.events import Stream
from exporter.recording.goodput import GoodputObjective
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Distribution, Measurement, Snapshot, SourceError
from exporter.sources.tap_source import TapSource
from exporter.store.store import Store
from exporter.taps.process import child_process as taps_process
from exporter.taps.process.child_process import TapProcess, TapReply
from exporter.taps.process.messages import (
    TapSettings,
    measurements_line,
    read_measurements,
    read_settings,
    settings_line,
)
from slos.errors import InvalidFile
from slos.queries import OWN_SERIES
from slos.signals import MAIN_SIGNALS, SIGNALS
from tests.polling import until
from tests.tcp_server import listening

ROOT = Path(__file__).parent.parent
START = re.compile(r"tokenslo 0\.\S+: metrics (http://127\.0\.0\.1:\d+)/metrics, status \1/\n")


_NAMES = b'{"object":"list","data":[{"id":"chat","object":"model"}]}'
_LISTED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_NAMES), _NAMES)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Upstream:
    """A server that streams as many chunks as ``max_tokens`` says, each when ``go`` is set."""

    port: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"POST /v1/chat"):
                    writer.write(_LISTED if b" /v1/models " in head else _NOT_FOUND)
                    await writer.drain()
                    continue
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n"
                )
                for _ in range(body["max_tokens"]):
                    self._event(writer, '{"choices":[{"index":0,"delta":{"content":"x"}}]}')
                    await writer.drain()
                    await self.go.wait()
                self._event(writer, "[DONE]")
                writer.write(b"0\r\n\r\n")
                await writer.drain()

    def _event(self, writer: asyncio.StreamWriter, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    one = Upstream()
    one.go.set()
    async with listening(one.serve) as one.port:
        yield one
        one.go.set()


def tap(upstream: Upstream) -> str:
    return f"proxy=127.0.0.1:0=127.0.0.1:{upstream.port}"


def port_of(tap: str) -> int:
    match = re.search(r"127\.0\.0\.1:(\d+)=", tap)
    assert match, tap
    return int(match[1])


@asynccontextmanager
async def streaming(port: int, tokens: int = 3) -> AsyncIterator[aiohttp.ClientResponse]:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    body = {"model": "chat", "stream": True, "max_tokens": tokens, "messages": []}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers={"X-Tenant": "acme"}) as answer,
    ):
        yield answer


async def stream(port: int, tokens: int = 3) -> None:
    async with streaming(port, tokens) as answer:
        assert (await answer.read()).count(b"data:") == tokens + 1


async def has_outcome(one: TapSource, succeeds: bool) -> bool:
    """Return whether a snapshot succeeds, or with ``succeeds`` false whether it fails."""
    with suppress(SourceError):
        await one.snapshot(0.0)
        return succeeds
    return not succeeds


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(pid: int) -> list[int]:
    """Return the child processes that run taps."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in words if _runs_taps(word)]


def _runs_taps(pid: str) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return taps_process.MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


async def child_of(pid: int) -> int:
    return (await until(lambda: children(pid)))[0]


# The source


@asynccontextmanager
async def source(upstream: Upstream, **more: object) -> AsyncIterator[tuple[TapSource, int]]:
    """Run taps; give the source and the port of the proxy."""
    given = TapSettings([tap(upstream)], **{"expected": ["chat"], **more})  # type: ignore[arg-type]
    async with TapSource(TapProcess(given)) as one:
        yield one, port_of(one.where)


def total(snapshot: Snapshot, signal: str) -> float:
    values = [
        value.count if isinstance(value, Distribution) else value
        for measurement in snapshot.measurements
        if measurement.signal == signal
        for value in measurement.samples.values()
    ]
    return sum(values)


async def until_streams(one: TapSource, count: int) -> Snapshot:
    """Take snapshots until ``count`` streams are reported."""

    async def reported() -> Snapshot | None:
        snapshot = await one.snapshot(0.0)
        return snapshot if total(snapshot, "streams") >= count else None

    snapshot = await until(reported)
    assert snapshot
    return snapshot


def shown(families: tuple[MetricFamily, ...], tap: str) -> dict[str, float]:
    """Return values by name and labels, those of ``tap`` without it."""
    found = {}
    for family in families:
        for labels, value in family.series:
            assert labels.pop("tap", tap) == tap
            found[family.name.removeprefix("tokenslo_tap_") + "".join(labels.values())] = value
    return found


async def settled(one: TapSource, tap: str) -> None:
    """Wait until no connection is open."""

    async def is_so() -> bool:
        await one.snapshot(0.0)
        return shown(one.families(), tap)["connections"] == 0

    await until(is_so)


async def test_streams_are_counted_from_zero_with_unavailable_signals(upstream: Upstream) -> None:
    async with source(upstream, tenant_header="x-tenant") as (one, port):
        born = await one.snapshot(0.0)
        assert {(one.model, one.version) for one in born.measurements} == {("chat", "")}
        assert total(born, "requests") == total(born, "itl") == 0
        await stream(port)
        await stream(port)
        await until_streams(one, 2)
        second = await one.snapshot(0.0)
        assert total(second, "output_tokens") == 6
        [info] = second.models
        assert (info.model, info.version, info.decoupled) == ("chat", "", True)
        assert {measurement.signal for measurement in second.measurements} | {
            gap.signal for gap in second.missing
        } >= set(MAIN_SIGNALS)
        gaps = {gap.signal: (gap.reason, gap.fix) for gap in second.missing}
        assert gaps["kv_utilization"] == (
            "bytes on the wire do not show it",
            "give the sidecar --triton URL, --trtllm URL, --vllm URL or --sglang URL as well",
        )
        assert second.lost_records == 0
        tenants = next(r for r in second.measurements if r.signal == "tenant_requests")
        assert {dict(labels)["tenant"] for labels in tenants.samples} == {"acme"}
        assert total(second, "tenant_requests") == 2
        # With tenants the tap measures prompts, as this server reports no number of tokens.
        held = next(r for r in second.measurements if r.signal == "tenant_kv_token_seconds")
        assert held.method == "wire_kv_partial"
        name = f"proxy=127.0.0.1:{port}=127.0.0.1:{upstream.port}"

        await settled(one, name)
        of_tap = shown(one.families(), name)
        # On a busy machine a read may be late.
        assert total(second, "itl") + of_tap.pop("late_gaps") == 4
        assert of_tap.pop("late_reads") >= 0
        assert of_tap == {
            "connections": 0,
            "connections_opened": 2,
            "lossy_streams": 0,
            "restarts": 0,
        }


async def test_the_tap_process_counts_by_prompt_class(upstream: Upstream) -> None:
    async with source(upstream, prompt_classes=(1, 16)) as (one, port):
        await stream(port)
        snapshot = await until_streams(one, 1)
        [classes] = [each for each in snapshot.measurements if each.signal == "prompt_class"]
        assert classes.method == "wire_prompt_bytes"
        assert {dict(key)["prompt_class"]: n for key, n in classes.samples.items() if n} == {
            "0-1": 1
        }
        [requests] = [each for each in snapshot.measurements if each.signal == "requests"]
        assert {dict(key)["prompt_class"] for key in requests.samples} == {
            *("0-1", "2-16", "over-16", "unknown")
        }


async def test_a_stream_that_hangs_is_bad_while_it_hangs_and_once(upstream: Upstream) -> None:
    upstream.go.clear()
    objective = GoodputObjective("chat/good", "", {"max_gap": 0.1})
    async with source(upstream, thresholds={"max_gap": [0.1]}, objectives=[objective]) as (
        one,
        port,
    ):

        async def bad(signal: str) -> float:
            snapshot = await one.snapshot(0.0)
            return sum(
                value
                for measurement in snapshot.measurements
                if measurement.signal == signal
                for labels, value in measurement.samples.items()
                if ("result", "bad") in labels and isinstance(value, float)
            )

        async def is_counted() -> bool:
            return await bad("max_gap_slo_events") == await bad("goodput") == 1

        async with streaming(port) as answer:
            await until(is_counted)
            assert total(await one.snapshot(0.0), "requests") == 0, "it has not ended"
            upstream.go.set()
            await answer.read()
        await until_streams(one, 1)
        assert await is_counted()


async def test_tap_beside_other_sources_leaves_engine_signals_to_them(upstream: Upstream) -> None:
    async with TapSource(
        TapProcess(TapSettings([tap(upstream)], expected=["chat"])), alone=False
    ) as one:
        await stream(port_of(one.where))
        snapshot = await one.snapshot(0.0)
    assert snapshot.models == ()
    assert {gap.signal for gap in snapshot.missing} == {
        *("itl_normalized", "tpot", "queue", "prefill", "goodput"),
        *("input_tokens", "cached_input_tokens", "kv_token_seconds"),
    } - {measurement.signal for measurement in snapshot.measurements}


async def test_goals_and_thresholds_reach_the_taps(upstream: Upstream) -> None:
    objectives = (GoodputObjective("chat/fast", "chat", {"e2e": 60.0}),)
    async with source(upstream, objectives=objectives, thresholds={"ttft": (0.123,)}) as (
        one,
        port,
    ):
        await stream(port)
        snapshot = await until_streams(one, 0)
        snapshot = await until_streams(one, 1)
    actual = {measurement.signal: measurement.samples for measurement in snapshot.measurements}
    labels = (("clause", ""), ("objective", "chat/fast"), ("result", "good"))
    assert {key: n for key, n in actual["goodput"].items() if n} == {labels: 1.0}
    [ttft] = actual["ttft"].values()
    assert isinstance(ttft, Distribution)
    assert 0.123 in ttft.boundaries
    reasons = {gap.signal: gap.reason for gap in snapshot.missing}
    assert reasons["kv_token_seconds"] == "no stream had the number of its input tokens"


async def test_requests_by_endpoint_reach_the_push(upstream: Upstream) -> None:
    async with source(upstream, genai={"ttft": (0.5,), "e2e": (60.0,)}) as (one, port):
        await stream(port)
        await until_streams(one, 0)
        await until_streams(one, 1)
        found = {(each.signal, each.model, each.endpoint): each.value for each in one.genai}
    assert found.keys() == {("ttft", "chat", "chat"), ("e2e", "chat", "chat")}
    assert (found["e2e", "chat", "chat"].boundaries, found["e2e", "chat", "chat"].count) == (
        (60.0, inf),
        1,
    )


async def test_a_process_that_is_killed_is_started_again(
    upstream: Upstream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taps_process, "FIRST_PAUSE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fixed = f"proxy=127.0.0.1:{port}=127.0.0.1:{upstream.port}"
    async with TapSource(TapProcess(TapSettings([fixed], expected=["chat"]))) as one:
        await stream(port)
        await until_streams(one, 0)
        await until_streams(one, 1)
        upstream.go.clear()
        async with streaming(port):

            async def is_live() -> bool:
                return total(await one.snapshot(0.0), "live_streams") == 1

            await until(is_live)
            os.kill(await child_of(os.getpid()), signal.SIGKILL)

            await until(lambda: has_outcome(one, False))
            with pytest.raises(SourceError) as down:
                await one.snapshot(0.0)
            assert down.value.kind == "ended"
            assert "the tap process was killed by SIGKILL" in str(down.value)
            upstream.go.set()

        await until(lambda: has_outcome(one, True))
        await stream(port)
        await until_streams(one, 0)
        snapshot = await until_streams(one, 1)
        assert snapshot.lost_records == 1
        await settled(one, fixed)
        of_tap = shown(one.families(), fixed)
        assert {name: of_tap[name] for name in of_tap if not name.startswith("late_")} == {
            "connections": 0,
            "connections_opened": 3,
            "lossy_streams": 0,
            "restarts": 1,
        }
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the tap process was killed by SIGKILL; its streams are lost; restarting it"
    ]


async def test_stopped_process_times_out_and_then_reports_everything(upstream: Upstream) -> None:
    async with TapSource(
        TapProcess(TapSettings([tap(upstream)], expected=["chat"])), timeout=0.2
    ) as one:
        await stream(port_of(one.where))
        await one.snapshot(0.0)
        child = await child_of(os.getpid())
        os.kill(child, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(SourceError, match=r"the tap process did not respond within 0\.2 s"):
                await one.snapshot(0.0)
        os.kill(child, signal.SIGCONT)
        snapshot = await one.snapshot(0.0)
        assert total(snapshot, "streams") == 1
        assert len(snapshot.measurements) == len(
            {measurement.signal for measurement in snapshot.measurements}
        )


async def test_terminal_signals_do_not_end_the_tap_process(upstream: Upstream) -> None:
    async with source(upstream) as (one, port):
        child = await child_of(os.getpid())
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child, number)
        await stream(port)
        await one.snapshot(0.0)
        await one.drain()
        assert gone(child)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            TapSettings(["capture=nosuch0:8000"]),
            r"tokenslo exporter: tap: .*nosuch0.* Fix: .*\.",
        ),
        (
            TapSettings(["proxy=127.0.0.1:0=127.0.0.1:1"], certificate="/nowhere", key="/nowhere"),
            r'tokenslo exporter: tap: "/nowhere" with "/nowhere" cannot be used: No such file or '
            r"directory\. Fix: .*\.",
        ),
    ],
)
async def test_taps_that_cannot_start_are_one_problem(given: TapSettings, expected: str) -> None:
    process = TapProcess(given)
    with pytest.raises(InvalidFile) as failed:
        await process.start()
    [problem] = failed.value.problems
    assert re.fullmatch(expected, str(problem))


async def test_credentials_are_logged_at_no_level(
    capfd: pytest.CaptureFixture[str],
) -> None:
    nowhere = TapSettings(["proxy=127.0.0.1:0=127.0.0.1:1"], log_level="debug")
    async with (
        TapSource(TapProcess(nowhere)) as one,
        grpc.aio.insecure_channel(f"127.0.0.1:{port_of(one.where)}") as channel,
    ):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\n\x04chat", metadata=(("authorization", "Bearer hush"),), timeout=5)
    log = capfd.readouterr().err
    assert "forwarding to 127.0.0.1:1" in log
    assert "hush" not in log


async def test_process_that_does_not_start_is_one_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(taps_process, "MODULE", "exporter.taps.tap")
    with pytest.raises(InvalidFile) as failed:
        await TapProcess(TapSettings(["capture=lo:8000"])).start()
    assert str(failed.value) == (
        "tokenslo exporter: tap: the tap process could not start: it ended with "
        "status 0. Fix: see the log lines before this one."
    )


def test_the_process_is_small() -> None:
    heavy = ("aiohttp", "click", "grafanalib", "opentelemetry", "prometheus_client", "yaml")
    code = (
        "import sys, pathlib, exporter.taps.process.worker;"
        f"print(*(name for name in {heavy!r} if name in sys.modules));"
        "status = pathlib.Path('/proc/self/status').read_text();"
        "print(status.partition('VmRSS:')[2].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    loaded, kibibytes = done.stdout.splitlines()
    assert (done.stderr, loaded) == ("", "")
    assert int(kibibytes) < 40 * 1024


# The sidecar


@asynccontextmanager
async def sidecar(upstream: Upstream, *more: str) -> AsyncIterator[tuple[Process, str, int]]:
    """Run the command; give it, its URL and the port of the proxy."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tokenslo", "exporter", "--tap", tap(upstream), "--listen", "127.0.0.1:0"),
        *("--interval", "50ms", *more),
        cwd=ROOT,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert process.stdout
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        match = START.fullmatch(line)
        assert match, line or (await process.communicate())[1].decode()
        url = match[1]

        async def taps() -> list[str]:
            return re.findall(r'_connections\{tap="(.*)"\}', await get(f"{url}/metrics"))

        yield process, url, port_of((await until(taps))[0])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_metrics_have_cpu_and_memory_of_both_processes(upstream: Upstream) -> None:
    async with sidecar(upstream) as (process, url, _):
        text = await get(f"{url}/metrics")
        values = {
            name: float(value)
            for name, value in re.findall(r"^((?:tokenslo_tap_)?process_\w+) (\S+)$", text, re.M)
        }
        of_tap = {each.name: each for each in tap_families(await child_of(process.pid))}
    own = ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds", "open_fds")
    assert all(values[f"process_{name}"] > 0 for name in own)
    taps = {name: value for name, value in values.items() if name.startswith("tokenslo_")}
    assert {*taps} == {name for name in OWN_SERIES if "_tap_process_" in name}
    memory = "tokenslo_tap_process_resident_memory_bytes"
    [(_, resident)] = of_tap[memory].series
    assert taps[memory] == pytest.approx(resident, rel=0.2)
    assert taps[memory] != values["process_resident_memory_bytes"]


async def is_closed(port: int) -> bool:
    """Return whether nothing accepts connections on a port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:  # refused, or closed before it was accepted
        return True
    writer.close()
    return False


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def test_draining_sidecar_finishes_streams_and_serves_metrics(upstream: Upstream) -> None:
    upstream.go.clear()
    async with sidecar(upstream) as (process, url, port):
        child = await child_of(process.pid)
        async with streaming(port) as answer:
            await answer.content.readuntil(b"\n\n")
            process.terminate()

            await until(partial(is_closed, port))
            live = 'llm_live_streams{model="chat",version=""} 1.0\n'

            async def is_shown() -> bool:
                return live in await get(f"{url}/metrics")

            await until(is_shown)
            upstream.go.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        _, errors = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == 0
        assert gone(child)
        assert "level=error" not in errors.decode()


async def test_streams_of_the_drain_are_in_one_more_scrape(upstream: Upstream) -> None:
    upstream.go.clear()
    async with sidecar(upstream, "--tap-drain", "60s") as (process, url, port):
        async with streaming(port) as answer:
            await answer.content.readuntil(b"\n\n")
            await get(f"{url}/metrics")
            await asyncio.sleep(2)
            await get(f"{url}/metrics")
            process.terminate()
            await until(partial(is_closed, port))
            upstream.go.set()
            await answer.read()
        await asyncio.sleep(1)
        text = await get(f"{url}/metrics")
        assert 'llm_requests_total{model="chat",outcome="ok",version=""} 1.0\n' in text
        assert 'llm_live_streams{model="chat",version=""} 0.0\n' in text
        assert 'tokenslo_source_up{source="taps"} 1.0\n' in text
        _, errors = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == 0
        assert "level=error" not in errors.decode()


async def test_second_signal_ends_the_drain(upstream: Upstream) -> None:
    upstream.go.clear()
    async with sidecar(upstream) as (process, _, port):
        child = await child_of(process.pid)
        with suppress(aiohttp.ClientError):
            async with streaming(port) as answer:
                await answer.content.readuntil(b"\n\n")
                process.send_signal(signal.SIGINT)
                await until(partial(is_closed, port))
                assert process.returncode is None
                process.send_signal(signal.SIGINT)
                await asyncio.wait_for(process.communicate(), 5)
        assert process.returncode == 0
        assert gone(child)


async def test_streams_outlive_a_sidecar_that_is_killed(upstream: Upstream) -> None:
    upstream.go.clear()
    async with sidecar(upstream) as (process, _, port):
        child = await child_of(process.pid)
        async with streaming(port) as answer:
            await answer.content.readuntil(b"\n\n")
            process.kill()
            await until(lambda: gone(process.pid))
            await until(partial(is_closed, port))
            assert not gone(child)
            upstream.go.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await until(lambda: gone(child))


async def test_port_in_use_is_one_line_and_exit_code_2(upstream: Upstream) -> None:
    taken = f"proxy=127.0.0.1:{upstream.port}=127.0.0.1:1"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tokenslo", "exporter", "--tap", taken, "--listen", "127.0.0.1:0"),
        *("--tap-connections", "100"),
        cwd=ROOT,
        stdout=PIPE,
        stderr=PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out, errors.decode()) == (
        2,
        b"",
        f"tokenslo exporter: tap: 127.0.0.1:{upstream.port} is in use by another program. "
        "Fix: stop it, or choose another port.\n",
    )


# From recorder to store


class RecordedProcess:
    """A tap process whose replies hold the metrics of ``recorder``."""

    restarts = 0
    taps = ()
    tasks = ()

    def __init__(self) -> None:
        self.recorder = StreamRecorder({}, [GoodputObjective("chat/good", "", {"tpot": 1.0})])

    async def snapshot(self, *_: object) -> TapReply:
        lines = [measurements_line(model) for model in self.recorder.measurements()]
        measurements = tuple(
            measurement for line in lines for measurement in read_measurements(json.loads(line))
        )
        return TapReply(measurements, (), self.recorder.live)


KINDS = ("with_usage", "without_usage", "disconnected", "snapshot", "restart")


@given(st.lists(st.sampled_from(KINDS), max_size=30))
@settings(max_examples=60, deadline=None)
def test_no_method_and_no_restart_makes_the_store_lose_or_repeat_a_token(
    happenings: list[str],
) -> None:
    process, store = RecordedProcess(), Store(stale_after=1e9)
    one = TapSource(process)  # type: ignore[arg-type]
    sent, now = 0, 0.0

    def snapshot() -> None:
        nonlocal now
        now += 1.0
        store.update(asyncio.run(one.snapshot(now)), now, 0.0)

    snapshot()
    for happening in (*happenings, "snapshot"):
        if happening == "snapshot":
            snapshot()
        elif happening == "restart":
            snapshot()
            process.recorder = StreamRecorder(
                {}, [GoodputObjective("chat/good", "", {"tpot": 1.0})]
            )
            process.restarts += 1
        else:
            seen = Stream("generate_stream", "chat", streaming=True, arrived=1.0)
            process.recorder.started(seen, 1.0)
            for time in (2.0, 3.0):
                process.recorder.chunk(seen, time, 0)
            if happening == "with_usage":
                seen.counted, seen.output_tokens, seen.input_tokens = True, 5, 7
            outcome = "client_disconnected" if happening == "disconnected" else "ok"
            process.recorder.ended(seen, 4.0, outcome, "", None)  # type: ignore[arg-type]
            sent += 5 if happening == "with_usage" else 2

    count = {kind: happenings.count(kind) for kind in KINDS}
    ended = count["with_usage"] + count["without_usage"]
    expected = {
        "requests": ended + count["disconnected"],
        "itl": ended + count["disconnected"],
        "tpot": ended,
        "goodput": ended,
        "output_tokens": sent,
        "input_tokens": 7 * count["with_usage"],
        "partial_tokens": 2 * count["disconnected"],
    }
    for state in store.view(now).signals:
        if state.signal in expected and state.quality != "unavailable":
            values = state.samples.values()
            actual = sum(one.count if isinstance(one, Distribution) else one for one in values)
            assert actual == expected[state.signal], state.signal


async def test_missing_version_is_the_only_one_of_triton() -> None:
    process, store = RecordedProcess(), Store(stale_after=1e9)
    one = TapSource(process, alone=False)  # type: ignore[arg-type]
    seen = Stream("generate_stream", "chat", streaming=True, arrived=1.0)
    process.recorder.started(seen, 1.0)
    process.recorder.chunk(seen, 2.0, 0)
    process.recorder.ended(seen, 4.0, "ok", "stop", None)
    ok = (("outcome", "ok"), ("reason", ""))

    def by_triton(*versions: str, count: float) -> Snapshot:
        actual = (
            Measurement("requests", "chat", v, "triton_counters", {ok: count}) for v in versions
        )
        return Snapshot("triton", tuple(actual))

    for now, count in ((1.0, 5.0), (2.0, 6.0)):
        store.update(by_triton("3", count=count), now, 0.0)
        store.update(await one.snapshot(now), now, 0.0)
    [state] = [state for state in store.view(2.0).signals if state.signal == "requests"]
    assert (state.version, state.method) == ("3", "wire")
    assert sum(value for value in state.samples.values() if isinstance(value, float)) == 1.0

    store.update(by_triton("3", "4", count=6.0), 3.0, 0.0)
    store.update(await one.snapshot(3.0), 3.0, 0.0)
    actual = {
        (state.version, state.method)
        for state in store.view(3.0).signals
        if state.signal == "requests"
    }
    assert actual == {("", "wire"), ("3", "triton_counters"), ("4", "triton_counters")}


# Messages

SECONDS = st.floats(0, 1e6)
READING = st.builds(
    Measurement,
    st.sampled_from(sorted(SIGNALS)),
    st.just("a\n\ud800 model"),
    st.just("1"),
    st.sampled_from(("wire", "wire_chunks")),
    st.dictionaries(
        st.sampled_from(((), (("a", "x"),), (("a", '"\n'), ("b", "")))),
        SECONDS
        | st.builds(
            lambda counts, total: Distribution((0.1, inf), counts, total),
            st.tuples(SECONDS, SECONDS),
            SECONDS,
        ),
    ),
)


@given(st.lists(READING, min_size=1))
def test_measurements_survive_a_round_trip(measurements: list[Measurement]) -> None:
    line = measurements_line(measurements)
    assert line.index(b"\n") == len(line) - 1
    assert read_measurements(json.loads(line)) == tuple(measurements)


def test_settings_survive_a_round_trip() -> None:
    given = TapSettings(
        ["capture=lo:8000"],
        tenant_header="x-tenant",
        thresholds={"ttft": [0.5]},
        objectives=(GoodputObjective("chat/good", "chat", {"tpot": 0.06, "ttft": 0.8}),),
        expected=["chat"],
        upstream_name="triton",
    )
    read = read_settings(settings_line(given))
    assert read == given
    assert list(read.objectives[0].clauses) == ["tpot", "ttft"]
