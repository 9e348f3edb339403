"""A day of churn in minutes: streams that end in every way, and a server that is killed."""

from __future__ import annotations

import asyncio
import random
import subprocess
from statistics import linear_regression, median
from time import monotonic

from lab.faults.fault import Expectation, Fault, FaultEffect
from lab.faults.setup import SETTLE_SECONDS, FaultSetup, until
from lab.faults.sidecar_process import descriptors, mebibytes
from lab.process import free_ports

DAY_SECONDS = 86_400
WARM_UP_SECONDS, SECONDS = 20.0, 150.0
CROWDS = 3
LEAK_MEBIBYTES = 2.0
"""Growth over the second half that is not a leak: memory is never quite flat."""
RESTARTED_SHARE, REPLACED_SHARE = 0.1, 0.3


def growth(sizes: list[float]) -> float:
    """Return the rise of a straight line through the second half."""
    half = sizes[len(sizes) // 2 :]
    return linear_regression(range(len(half)), half).slope * len(half)


class _Churn:
    """Crowds of clients and their server."""

    def __init__(self, setup: FaultSetup, upstream: int, port: int) -> None:
        self._setup, self._upstream, self._port = setup, upstream, port
        self._dice = random.Random(1)
        self._number = 0
        self._server = self._serve()
        self._crowds = [self._crowd() for _ in range(CROWDS)]
        self.server_restarts = 0

    async def run(
        self, seconds: float, sizes: dict[str, list[float]], pids: dict[str, int]
    ) -> None:
        """Let crowds and the server be killed and replaced; append memory to ``sizes``."""
        end = monotonic() + seconds
        while monotonic() < end:
            await asyncio.sleep(self._dice.uniform(0.4, 0.8))
            if (chance := self._dice.random()) < RESTARTED_SHARE:
                await asyncio.to_thread(_stop, self._server)
                self._server = await asyncio.to_thread(self._serve)
                self.server_restarts += 1
            elif chance < REPLACED_SHARE:
                victim = self._dice.randrange(CROWDS)
                await asyncio.to_thread(_stop, self._crowds[victim])
                self._crowds[victim] = self._crowd()
            for name, pid in pids.items():
                sizes[name].append(mebibytes(pid))

    def stop(self) -> None:
        """End the clients."""
        for crowd in self._crowds:
            _stop(crowd)

    def _serve(self) -> subprocess.Popen[str]:
        return self._setup.worker("stream_processes", "serve", str(self._upstream))

    def _crowd(self) -> subprocess.Popen[str]:
        self._number += 1
        log = str(self._setup.folder / "clients.log")
        arguments = ("churn", str(self._port), log, str(self._number))
        return self._setup.worker("stream_processes", *arguments, ready=False)


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


async def _inject(setup: FaultSetup) -> FaultEffect:
    upstream, port = free_ports(2)
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=upstream, tap=port)
    churn = _Churn(setup, upstream, port)
    pids = sidecar.pids()
    sizes: dict[str, list[float]] = {name: [] for name in pids}
    try:
        await churn.run(WARM_UP_SECONDS, {name: [] for name in pids}, pids)
        files = {name: descriptors(pid) for name, pid in pids.items()}
        await churn.run(SECONDS, sizes, pids)
    finally:
        churn.stop()
    seconds = await sidecar.wait_for("tokenslo_tap_connections", 0, SETTLE_SECONDS)
    await sidecar.wait_for("llm_live_streams", 0, SETTLE_SECONDS)

    def files_are_closed() -> bool:
        # Connections of clients are open while the first number is taken, so it is an upper bound.
        return all(descriptors(pid) <= files[name] for name, pid in pids.items())

    await until(files_are_closed, SETTLE_SECONDS, "open files are closed")
    last = await sidecar.scrape()
    log = (setup.folder / "clients.log").read_text()
    answered, begun = log.count("a"), log.count("b")
    requests = round(last.sum("llm_requests_total"))
    lossy = round(last.sum("tokenslo_tap_lossy_streams_total"))
    rises = {name: growth(found) for name, found in sizes.items()}
    rate = requests / DAY_SECONDS
    memory = ", ".join(
        f"{name} {median(found[: len(found) // 4]):.1f} MiB in the first quarter, "
        f"{median(found[-len(found) // 4 :]):.1f} in the last"
        for name, found in sizes.items()
    )
    return FaultEffect(
        f"{requests:,} requests in {WARM_UP_SECONDS + SECONDS:.0f} s, as many as in 24 h at "
        f"{rate:.2f} per second: read, disconnected, reset, half-closed, not read, or aborted by "
        f"the server, which was killed {churn.server_restarts} times",
        (),
        "no connection and no stream was left",
        seconds,
        (
            Expectation(
                f"{requests:,} requests were counted; clients began {begun:,} and got the head of "
                f"{answered:,} responses",
                answered <= requests <= begun,
            ),
            Expectation(
                f"resident memory: {memory}",
                all(rise < LEAK_MEBIBYTES for rise in rises.values()),
            ),
            Expectation(f"{lossy} lossy streams", lossy == 0),
            Expectation("both processes continued", sidecar.pids() == pids),
        ),
    )


FAULTS = (Fault("churn-24h", "Churn", "a day of churn", _inject, 30.0),)
