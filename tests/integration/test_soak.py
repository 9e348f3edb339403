"""The sidecar and its taps among clients and servers that come, go and are killed.

Half a minute, or TOKENSLO_SOAK_SECONDS.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

from lab.faults.churn import growth
from lab.faults.sidecar_process import children, descriptors, is_tap_process, mebibytes
from lab.faults.stream_processes import END, MODEL, request
from lab.process import free_ports
from tests.polling import until

pytestmark = [pytest.mark.alone, pytest.mark.long]

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("TOKENSLO_SOAK_SECONDS", "30"))
CROWDS = 3
LEAK = 1.8
"""MiB by which memory may seem to have grown in the second half, for it is never quite flat; the
few hundred bytes of each stream's own object would be half as much again."""
SOON = 15.0


@dataclass
class SoakSetup:
    """What runs, and where."""

    folder: Path
    upstream: int
    port: int
    url: str = ""
    processes: dict[str, Process] = field(default_factory=dict)
    crowds: int = 0

    async def start(self, name: str, *command: str, ready: bool = False) -> None:
        """Start a process; with ``ready``, return once it says something."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=PIPE
        )
        self.processes[name] = process
        if ready:
            assert process.stdout
            async with asyncio.timeout(SOON):
                line = (await process.stdout.readline()).decode()
            assert line, f"{name} did not start"
            self.url = line.split()[3].removesuffix("/metrics,") if name == "sidecar" else self.url

    async def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            process.kill()
        async with asyncio.timeout(SOON):
            await process.communicate()

    async def serve(self) -> None:
        await self.start(
            "server", "-m", "lab.faults.stream_processes", "serve", str(self.upstream), ready=True
        )

    async def crowd(self, name: str) -> None:
        """Start a process of many clients."""
        self.crowds += 1
        log = str(self.folder / "log")
        seed = str(self.crowds)
        await self.start(
            name, "-m", "lab.faults.stream_processes", "churn", str(self.port), log, seed
        )

    async def child(self) -> int:
        """Return the process of the taps."""
        found: list[int] = []

        async def is_there() -> bool:
            found[:] = filter(is_tap_process, children(self.processes["sidecar"].pid))
            return bool(found)

        await until(is_there, SOON, 0.05)
        return found[0]

    async def metrics(self) -> Metrics:
        timeout = aiohttp.ClientTimeout(SOON)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{self.url}/metrics") as answer,
        ):
            return Metrics(await answer.text())

    async def calm(self) -> None:
        """Wait until no connection and no stream is left."""

        async def is_so() -> bool:
            seen = await self.metrics()
            return seen["tokenslo_tap_connections"] == 0 == seen["llm_live_streams"]

        await until(is_so, SOON, 0.05)
        await asyncio.sleep(0.5)  # two snapshots, so that every count is reported

    def logged(self, letter: str) -> int:
        return (self.folder / "log").read_text().count(letter)


class Metrics:
    """An exposition, summed over the labels outside of the pattern."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getitem__(self, pattern: str) -> float:
        lines = re.findall(rf"^{pattern}(?:\{{.*\}})? (\S+)$", self._text, re.MULTILINE)
        return sum(map(float, lines))


@asynccontextmanager
async def soaking(folder: Path) -> AsyncIterator[SoakSetup]:
    upstream, port = free_ports(2)
    scene = SoakSetup(folder, upstream, port)
    try:
        await scene.serve()
        await scene.start(
            "sidecar",
            *("-m", "tokenslo", "exporter", "--listen", "127.0.0.1:0", "--interval", "200ms"),
            *("--tap", f"proxy=127.0.0.1:{port}=127.0.0.1:{upstream}", "--tap-drain", "10s"),
            *("--log-level", "error"),
            ready=True,
        )
        yield scene
    finally:
        for name in list(scene.processes):
            await scene.kill(name)


async def _churn(scene: SoakSetup, seconds: float, dice: random.Random) -> dict[str, list[float]]:
    """Let crowds of clients and the server be killed; return memory over time, in MiB."""
    pids = {"sidecar": scene.processes["sidecar"].pid, "taps": await scene.child()}
    sizes: dict[str, list[float]] = {name: [] for name in pids}
    for number in range(CROWDS):
        await scene.crowd(f"crowd {number}")
    end = monotonic() + seconds
    while monotonic() < end:
        await asyncio.sleep(dice.uniform(0.4, 0.8))
        victim = f"crowd {dice.randrange(CROWDS)}"
        if dice.random() < 0.2:
            await scene.kill("server")
            await asyncio.sleep(dice.uniform(0, 0.2))
            await scene.serve()
        elif dice.random() < 0.4:
            await scene.kill(victim)
            await scene.crowd(victim)
        for name, pid in pids.items():
            sizes[name].append(mebibytes(pid))
    for number in range(CROWDS):
        await scene.kill(f"crowd {number}")
    await scene.calm()
    return sizes


async def test_nothing_is_left_of_thousands_of_streams_however_they_end(tmp_path: Path) -> None:
    async with soaking(tmp_path) as scene:
        dice = random.Random(1)
        await _churn(scene, 4, dice)
        child = await scene.child()
        open_files = {pid: descriptors(pid) for pid in (scene.processes["sidecar"].pid, child)}
        sizes = await _churn(scene, SECONDS, dice)
        assert await scene.child() == child
        assert {pid: descriptors(pid) for pid in open_files} == open_files
        for name, taken in sizes.items():
            assert growth(taken) < LEAK, (name, taken)

        exposition = await scene.metrics()
        requests, streams = exposition["llm_requests_total"], exposition["llm_streams_total"]
        assert requests > 20 * SECONDS
        assert scene.logged("a") <= requests <= scene.logged("b")
        assert (
            exposition["llm_time_to_first_token_seconds_count"]
            == streams - exposition["llm_requests_without_first_token_total"]
        )
        left = exposition["llm_streaming_disconnects_total"]
        assert left == exposition["llm_disconnect_age_seconds_count"]
        assert left == exposition[r'llm_streams_total\{.*outcome="client_disconnected".*\}']
        ok = exposition[r'llm_requests_total\{.*outcome="ok".*\}']
        assert ok == exposition["llm_request_duration_seconds_count"]
        for outcome in ("ok", "client_disconnected", "error"):
            assert exposition[rf'llm_requests_total\{{.*outcome="{outcome}".*\}}'] > 0
        assert exposition["tokenslo_tap_lossy_streams_total"] == 0


async def test_a_killed_child_is_replaced_and_then_streams_may_end_before_the_sidecar(
    tmp_path: Path,
) -> None:
    async with soaking(tmp_path) as scene:
        for number in range(CROWDS):
            await scene.crowd(f"crowd {number}")

        async def is_busy() -> bool:
            return (await scene.metrics())["llm_live_streams"] > 0

        for _ in range(2):
            await until(is_busy, SOON, 0.05)
            child = await scene.child()
            os.kill(child, signal.SIGKILL)

            async def is_new(killed: int = child) -> bool:
                return await scene.child() != killed

            await until(is_new, SOON, 0.05)

        await until(is_busy, SOON, 0.05)
        for number in range(CROWDS):
            await scene.kill(f"crowd {number}")
        await scene.calm()
        assert (await scene.metrics())["tokenslo_tap_restarts_total"] == 2

        child = await scene.child()
        streams = [asyncio.create_task(_whole(scene.port, 40, 0.05)) for _ in range(20)]
        await until(is_busy, SOON, 0.05)
        sidecar = scene.processes["sidecar"]
        sidecar.terminate()
        assert set(await asyncio.gather(*streams)) == {40}
        async with asyncio.timeout(SOON):
            assert await sidecar.wait() == 0
        assert not is_tap_process(child)


async def _whole(port: int, tokens: int, pace: float) -> int:
    """Return how many events came before the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(tokens, pace, prompt=MODEL))
    async with asyncio.timeout(SOON):
        answer = await reader.readuntil(END)
    writer.close()
    return answer.count(b"data: ")
