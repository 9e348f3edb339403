"""SIGTERM and SIGKILL of the sidecar and of its tap process, during streams."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Literal

import aiohttp

from lab.faults.fault import Expectation, Fault, FaultEffect, Loss
from lab.faults.setup import INTERVAL, SETTLE_SECONDS, FaultSetup, kill_group, until
from lab.faults.sidecar_process import ScrapedSeries, SidecarProcess
from lab.faults.stream_load import EndedStream, read_stream
from lab.incidents.stage import available_columns
from lab.process import ServerError
from lab.toolchain import UnavailableProgram

Tap = Literal["proxy", "capture"]
STREAMS = 20
TOKENS, PACE = 20, 0.1
"""The shortest stream; each further one has one token more."""
SCRAPE_PAUSE = 0.1
RESTART_SECONDS = 60.0
EARLIER, LATER = 5, 20
"""Streams that end before a SIGKILL of the sidecar, and that begin after its restart."""
UNDER_WAY = (
    "they were under way when the process that counts them was killed, which a scraper shows by "
    "`up == 0` or a new `process_start_time_seconds`; the other {others} were counted"
)


def _start(setup: FaultSetup, tap: Tap, upstream: int, port: int = 0) -> tuple[SidecarProcess, int]:
    """Start a sidecar; return it and the port of its clients."""
    if tap == "proxy":
        sidecar = setup.sidecar("--tap-drain", "20s", upstream=upstream, tap=port)
        return sidecar, sidecar.tap
    if "capture" not in available_columns():
        raise UnavailableProgram("the capture tap", "CAP_NET_RAW is missing", "run as root")
    capture = ("--tap", f"capture=lo:{upstream}", "--tap-drain", "20s")
    return setup.sidecar(*capture), upstream


async def _streaming(
    sidecar: SidecarProcess, port: int, earlier: int = 0
) -> tuple[list[asyncio.Task[EndedStream]], int]:
    """Start streams after a first one has ended; return them, and the requests counted so far.

    ``earlier`` requests have been counted before.
    """
    await read_stream(port, 3, 0.02)
    await sidecar.wait_for("llm_requests_total", earlier + 1, SETTLE_SECONDS, outcome="ok")
    streams = [
        asyncio.create_task(read_stream(port, TOKENS + number, PACE, prompt=f"p{number}"))
        for number in range(STREAMS)
    ]
    await sidecar.wait_for("llm_live_streams", STREAMS, SETTLE_SECONDS)
    await asyncio.sleep(3 * INTERVAL)
    return streams, earlier + 1


def _served(ended: list[EndedStream]) -> Expectation:
    complete = sum(each.complete for each in ended)
    return Expectation(f"{complete} of {len(ended)} streams were complete", complete == len(ended))


async def _sigterm(tap: Tap, setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    sidecar, port = await asyncio.to_thread(_start, setup, tap, upstream)
    streams, earlier = await _streaming(sidecar, port)
    os.kill(sidecar.pid, signal.SIGTERM)
    last = await sidecar.scrape()
    with suppress(aiohttp.ClientError, OSError):
        while True:
            last = await sidecar.scrape()
            await asyncio.sleep(SCRAPE_PAUSE)
    code = await asyncio.to_thread(sidecar.server.supervisor.wait)
    exited = monotonic()
    ended = await asyncio.gather(*streams)
    counted = round(last.sum("llm_requests_total", outcome="ok")) - earlier
    return FaultEffect(
        f"SIGTERM to the sidecar with the {tap} tap during {STREAMS} streams, and a scrape every "
        f"{SCRAPE_PAUSE * 1000:.0f} ms",
        (Loss("streams in no scrape", STREAMS - counted),),
        "the sidecar exited by itself after the last stream and one more scrape",
        max(0.0, exited - max(each.ended for each in ended)),
        (_served(ended), Expectation(f"exit code {code}", code == 0)),
    )


async def _sigkill_sidecar(tap: Tap, setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    sidecar, port = await asyncio.to_thread(_start, setup, tap, upstream)
    earlier = await asyncio.gather(*(read_stream(port, 3, 0.02) for _ in range(EARLIER)))
    await sidecar.wait_for("llm_requests_total", EARLIER, SETTLE_SECONDS, outcome="ok")
    streams, _ = await _streaming(sidecar, port, EARLIER)
    worker = sidecar.tap_pid()
    assert worker  # noqa: S101
    setup.stack.callback(_kill_if_there, worker)
    before = await sidecar.scrape()
    killed = monotonic()
    await asyncio.to_thread(kill_group, sidecar)
    restarted = await _restart(setup, tap, upstream, port)
    served = await read_stream(port, 3, 0.02)
    await restarted.wait_for("llm_requests_total", 1, SETTLE_SECONDS, outcome="ok")
    seconds = monotonic() - killed
    later = await asyncio.gather(*(read_stream(port, 3, 0.02) for _ in range(LATER)))
    ended = await asyncio.gather(*streams)
    await asyncio.sleep(3 * INTERVAL)
    after = await restarted.scrape()
    counted = sum(round(each.sum("llm_requests_total", outcome="ok")) for each in (before, after))
    others = EARLIER + LATER + 2  # with the one of _streaming, and the next request
    under_way = sum(each.began < killed < each.ended for each in ended)
    return FaultEffect(
        f"SIGKILL to the sidecar with the {tap} tap during {STREAMS} streams, with {others} others "
        "before it and after a restart, as a kubelet does",
        (
            Loss(
                "measurements of streams",
                STREAMS + others - counted,
                allowed=under_way,
                reason=UNDER_WAY.format(others=others),
            ),
        ),
        "the new sidecar measured the next request"
        + ("; new connections were refused until it listened" if tap == "proxy" else ""),
        seconds,
        (_served([*earlier, *ended, served, *later]),),
    )


async def _restart(setup: FaultSetup, tap: Tap, upstream: int, port: int) -> SidecarProcess:
    """Start the sidecar again; its port is free once the previous tap process has noticed."""
    began = monotonic()
    while True:
        try:
            return (await asyncio.to_thread(_start, setup, tap, upstream, port))[0]
        except ServerError:
            if monotonic() - began > RESTART_SECONDS:
                raise


async def _sigkill_taps(tap: Tap, setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    sidecar, port = await asyncio.to_thread(_start, setup, tap, upstream)
    streams, _ = await _streaming(sidecar, port)
    worker = sidecar.tap_pid()
    assert worker  # noqa: S101
    before = await sidecar.scrape()
    killed = monotonic()
    os.kill(worker, signal.SIGKILL)
    await sidecar.new_tap_pid(worker)

    async def is_served() -> bool:
        return (await read_stream(port, 3, 0.02)).complete

    await until(is_served, SETTLE_SECONDS, "a request is served")
    await sidecar.wait_for("tokenslo_source_up", 1, SETTLE_SECONDS, source="taps")
    seconds = monotonic() - killed
    ended = await asyncio.gather(*streams)
    after = await sidecar.scrape()
    cut = sum(not each.complete for each in ended)
    lost = _added(before, after, "tokenslo_source_lost_records_total")
    restarts = _added(before, after, "tokenslo_tap_restarts_total")
    expectations = [Expectation(f"{restarts} restart in `tokenslo_tap_restarts_total`",
                                restarts == 1)]  # fmt: skip
    losses = [Loss("measurements of streams", STREAMS, lost, "tokenslo_source_lost_records_total")]
    if tap == "proxy":
        losses.insert(0, Loss("streams", cut, lost, "tokenslo_source_lost_records_total"))
    else:
        expectations.append(_served(ended))
    return FaultEffect(
        f"SIGKILL to the tap process of the {tap} tap during {STREAMS} streams",
        tuple(losses),
        "the sidecar started a new tap process, which served the next request",
        seconds,
        tuple(expectations),
    )


async def _sigterm_taps(setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    sidecar, port = await asyncio.to_thread(_start, setup, "proxy", upstream)
    streams, earlier = await _streaming(sidecar, port)
    worker = sidecar.tap_pid()
    assert worker  # noqa: S101
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker, number)
    ended = await asyncio.gather(*streams)
    total = STREAMS + earlier
    seconds = await sidecar.wait_for("llm_requests_total", total, SETTLE_SECONDS, outcome="ok")
    same = sidecar.tap_pid() == worker
    return FaultEffect(
        f"SIGTERM and SIGINT to the tap process of the proxy tap during {STREAMS} streams",
        (),
        "no recovery needed: it ignores both, because the sidecar requests the drain",
        seconds,
        (_served(ended), Expectation("the tap process continued", same)),
    )


def _added(before: ScrapedSeries, after: ScrapedSeries, name: str) -> int:
    return round(after.sum(name) - before.sum(name))


def _kill_if_there(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _faults(tap: Tap) -> tuple[Fault, ...]:
    return (
        Fault(
            f"sigterm-{tap}",
            "Termination",
            f"SIGTERM of a sidecar with a {tap} tap",
            partial(_sigterm, tap),
            30.0,
        ),
        Fault(
            f"sigkill-{tap}",
            "Termination",
            f"SIGKILL of a sidecar with a {tap} tap",
            partial(_sigkill_sidecar, tap),
            30.0,
        ),
        Fault(
            f"sigkill-taps-{tap}",
            "Termination",
            f"SIGKILL of the tap process of a {tap} tap",
            partial(_sigkill_taps, tap),
            30.0,
        ),
    )


FAULTS = (
    *_faults("proxy"),
    Fault("sigterm-taps", "Termination", "SIGTERM of the tap process", _sigterm_taps, 30.0),
    *_faults("capture"),
)
