"""The process of the taps: ``python -m exporter.taps.process.worker FD``, started by the sidecar.

It is one of its own so that nothing else that the sidecar does, such as rendering a large scrape,
ever holds up a byte between a client and its server.  ``FD`` is one end of a socketpair; the other
end's EOF says that the sidecar is gone: then it lets connections end, and ends.  Signals are for
the sidecar, which says when it is time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from json import loads
from time import monotonic

import uvloop

from exporter.interpreter import limit_garbage_collection
from exporter.log import set_up
from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings as WireSettings
from exporter.recording.stream_recorder import StreamRecorder
from exporter.taps.process.messages import (
    MAX_LINE,
    TapSettings,
    TapState,
    line,
    read_settings,
    readings_line,
    state,
)
from exporter.taps.process.privileges import give_up
from exporter.taps.tap import CaptureSpec, Spec, Tap, parse
from slos.errors import InvalidFile

SALT_BYTES = 16
LAST_SURVEY_SECONDS = 2.5
"""How long the sidecar may take to ask for the last time, once connections have ended."""


@dataclass(frozen=True, slots=True)
class _RunningTap:
    """A tap, and what it tells."""

    tap: Tap
    recorder: StreamRecorder

    def name(self) -> str:
        """Return what the tap is, with the port that it really has."""
        spec, port = self.tap.spec, getattr(self.tap, "port", 0)
        return str(spec if isinstance(spec, CaptureSpec) else replace(spec, listen_port=port))

    def state(self) -> TapState:
        """Return what it has counted."""
        traffic = self.tap.traffic()
        lossy = self.recorder.lossy + traffic.unseen
        passed, late_gaps = dict(self.recorder.skips), self.recorder.late_gaps
        return TapState(self.name(), traffic, passed, lossy, late_gaps)


def main(descriptor: int) -> None:
    """Serve the sidecar at the other end of ``descriptor`` until it has enough or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(link: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=link, limit=MAX_LINE)
    settings = read_settings(await reader.readline())
    set_up(settings.log_level)
    recorder = StreamRecorder(
        settings.thresholds,
        settings.goals,
        settings.tenants,
        expected=settings.expected,
        probe=settings.probe,
        genai=settings.genai,
    )
    watched = list(_watched(settings, recorder))
    try:
        for one in watched:
            await one.tap.start()
    except InvalidFile as invalid:
        problems = [asdict(problem) for problem in invalid.problems]
        await _end(watched, writer, line({"problems": problems}))
        return
    give_up()
    writer.write(line({"started": [one.name() for one in watched]}))
    limit_garbage_collection()

    seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    told = asyncio.Event()
    answering = asyncio.create_task(_answer(reader, writer, recorder, watched, seconds, told))
    await asyncio.wait((answering, seconds), return_when=asyncio.FIRST_COMPLETED)
    patience = seconds.result() if seconds.done() else settings.drain
    busy = recorder.live > 0
    await asyncio.gather(*(one.tap.drain(patience) for one in watched))
    if busy and not answering.done():
        # What has ended since the last survey is told in one more.
        told.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SURVEY_SECONDS):
                await told.wait()
    answering.cancel()
    await _end(watched, writer)


def _watched(settings: TapSettings, recorder: StreamRecorder) -> Iterator[_RunningTap]:
    wire = WireSettings(settings.tenant_header, os.urandom(SALT_BYTES))
    for text in settings.taps:
        listener = recorder.for_another_tap()
        tap = _tap(parse(text), settings, listener, wire)
        listener.seen_until = tap.seen_until
        listener.lag = tap.lag
        yield _RunningTap(tap, listener)


def _tap(spec: Spec, settings: TapSettings, listener: StreamRecorder, wire: WireSettings) -> Tap:
    """Make a tap; only what it needs is loaded."""
    new_observer = partial(observe, listener, wire)
    if isinstance(spec, CaptureSpec):
        from exporter.taps.capture.capture_tap import CaptureTap

        return CaptureTap(spec, new_observer, listener.skipped)
    from exporter.taps.proxy.context import ProxyLimits
    from exporter.taps.proxy.proxy_tap import ProxyTap
    from exporter.taps.proxy.tls import Certificate, Verification

    return ProxyTap(
        spec,
        new_observer,
        listener.skipped,
        limits=ProxyLimits(settings.connections),
        certificate=Certificate(settings.certificate, settings.key)
        if settings.certificate
        else None,
        verification=Verification(settings.upstream_ca, settings.upstream_name)
        if settings.upstream_name
        else None,
        inject=settings.inject,
    )


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    recorder: StreamRecorder,
    watched: Sequence[_RunningTap],
    drain: asyncio.Future[float],
    told: asyncio.Event,
) -> None:
    """Answer the sidecar until it is gone.

    Sets ``drain`` when it says for how long to drain, and ``told`` after every survey.
    """
    with suppress(ConnectionError):
        while text := await reader.readline():
            message = loads(text)
            if "drain" in message:
                drain.set_result(message["drain"])
                continue
            for _ in recorder.evaluate_active(monotonic()):
                await asyncio.sleep(0)
            recorder.learn_models(message.pop("known"), message.pop("reported"))
            for measurements in recorder.measurements(changed_only=True):
                writer.write(readings_line(measurements))
                await writer.drain()
                # One model at a time: bytes between clients and servers come first.
                await asyncio.sleep(0)
            states = [state(one.state()) for one in watched]
            waiting = [(*model, count) for model, count in recorder.waiting().items()]
            tasks = [asdict(task) for one in watched for task in one.tap.tasks]
            summary = {
                "live": recorder.live,
                "waiting": waiting,
                "taps": states,
                "limited": recorder.limited,
                "tasks": tasks,
                "genai": list(recorder.genai.series()),
            }
            writer.write(line({**message, **summary}))
            await writer.drain()
            told.set()


async def _end(
    watched: Sequence[_RunningTap], writer: asyncio.StreamWriter, last: bytes = b""
) -> None:
    for one in watched:
        await one.tap.close()
    writer.write(last)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


if __name__ == "__main__":
    main(int(sys.argv[1]))
