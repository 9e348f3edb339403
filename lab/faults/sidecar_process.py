"""A sidecar as a process: start it, scrape it, and measure its two processes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from lab.process import HOST, ServerProcess, serve

SCRAPE_SECONDS = 30.0
START_SECONDS = 120.0
_CHECKOUT = Path(__file__).parents[2]
_WORKER = b"exporter.taps.process.worker"


class ScrapedSeries:
    """The series of one scrape, by name and labels; ``seconds`` is its duration."""

    def __init__(self, text: str, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the series with this name and these labels."""
        wanted = labels.items()
        return sum(
            value
            for (each, found), value in self._samples.items()
            if each == name and wanted <= found
        )

    def count(self, name: str, **labels: str) -> int:
        """Return the number of series with this name and these labels."""
        wanted = labels.items()
        return sum(each == name and wanted <= found for each, found in self._samples)

    def decreases(self, later: ScrapedSeries) -> list[str]:
        """Return the names of counters and histograms that decrease up to a later scrape."""
        endings = ("_total", "_count", "_bucket", "_sum")
        return sorted(
            {
                name
                for (name, labels), value in self._samples.items()
                if name.endswith(endings) and later._samples.get((name, labels), value) < value
            }
        )


@dataclass(frozen=True, slots=True)
class SidecarProcess:
    """A running sidecar; ``tap`` is the port of its first proxy tap, 0 without one."""

    server: ServerProcess
    tap: int = 0

    @property
    def pid(self) -> int:
        """The id of the sidecar's own process."""
        return self.server.pid

    async def scrape(self) -> ScrapedSeries:
        """Scrape ``/metrics``; raises aiohttp.ClientError or TimeoutError."""
        began = monotonic()
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SCRAPE_SECONDS)) as session,
            session.get(f"{self.server.url}/metrics") as response,
        ):
            text = await response.text()
        return ScrapedSeries(text, monotonic() - began)

    async def wait_for(self, name: str, value: float, seconds: float, **labels: str) -> float:
        """Wait until series add up to a value; return the seconds.  Raises TimeoutError."""
        began = monotonic()
        while (found := (await self.scrape()).sum(name, **labels)) != value:
            if monotonic() - began > seconds:
                where = f" with {labels}" if labels else ""
                raise TimeoutError(
                    f"{name}{where} is {found:g}, not {value:g}, after {seconds:g} s"
                )
            await asyncio.sleep(0.05)
        return monotonic() - began

    def tap_pid(self) -> int | None:
        """Return the id of the tap process, None while there is none."""
        return next((pid for pid in children(self.pid) if is_tap_process(pid)), None)

    async def new_tap_pid(self, previous: int | None = None, seconds: float = START_SECONDS) -> int:
        """Wait for a tap process other than the ``previous`` one.  Raises TimeoutError."""
        began = monotonic()
        while (pid := self.tap_pid()) is None or pid == previous:
            if monotonic() - began > seconds:
                raise TimeoutError(f"no new tap process within {seconds:g} s")
            await asyncio.sleep(0.02)
        return pid

    def pids(self) -> dict[str, int]:
        """Return the ids of both processes, by name."""
        tap = self.tap_pid()
        return {"sidecar": self.pid} | ({"taps": tap} if tap else {})


def start_sidecar(
    log: Path,
    options: Sequence[str | Path],
    *,
    tap: int = 0,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> SidecarProcess:
    """Start a sidecar on a free port; ``tap`` is the port of its proxy tap among the options.

    ``prefix`` is a command that executes the rest of its arguments, such as prlimit.
    Raises ServerError.
    """

    def command(ports: Sequence[int]) -> list[str | Path]:
        listen = ("--listen", f"{HOST}:{ports[0]}")
        return [*prefix, sys.executable, "-m", "tokenslo", "exporter", *listen, *options]

    server = serve(
        ServerProcess,
        "sidecar",
        command,
        log,
        ready="/healthz",
        cwd=_CHECKOUT,
        env=os.environ | (env or {}),
        deadline=START_SECONDS,
        grace=60.0,
    )
    return SidecarProcess(server, tap)


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def mebibytes(pid: int) -> float:
    """Return the resident memory of a process, its proportion of shared memory only."""
    found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    if not found:
        raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")
    return int(found[1]) / 1024


def descriptors(pid: int) -> int:
    """Return the number of open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def is_tap_process(pid: int) -> bool:
    """Return whether a process is the tap process of a sidecar."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return _WORKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
