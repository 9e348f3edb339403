"""The tap process: ``python -m exporter.taps.process.worker FD``, started by the sidecar.

It is a separate process so that other work of the sidecar, such as rendering a large scrape, never
delays a byte between a client and its server.  ``FD`` is one end of a socketpair; EOF from the
other end means that the sidecar has ended: the process then drains and ends.  It ignores signals:
the sidecar handles them and requests the drain.
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

from exporter.interpreter import (
    TAP_OLD_THRESHOLD,
    limit_garbage_collection,
    return_free_memory,
)
from exporter.log import set_up
from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings as WireSettings
from exporter.recording.stream_recorder import StreamRecorder
from exporter.taps.process.messages import (
    MAX_LINE,
    TapSettings,
    TapState,
    line,
    measurements_line,
    read_settings,
    state,
)
from exporter.taps.process.privileges import drop_capabilities
from exporter.taps.tap import CaptureSpec, Spec, Tap, parse
from slos.errors import InvalidFile

SALT_BYTES = 16
LAST_REQUEST_SECONDS = 2.5
"""Time for the sidecar's last request after connections have ended."""


@dataclass(frozen=True, slots=True)
class _RunningTap:
    """A tap and its recorder."""

    tap: Tap
    recorder: StreamRecorder

    def name(self) -> str:
        """Return the spec of the tap, with its actual port."""
        spec, port = self.tap.spec, getattr(self.tap, "port", 0)
        return str(spec if isinstance(spec, CaptureSpec) else replace(spec, listen_port=port))

    def state(self) -> TapState:
        """Return the counters of the tap and its recorder."""
        traffic = self.tap.traffic()
        lossy = self.recorder.lossy + traffic.unseen
        skipped, late_gaps = dict(self.recorder.skips), self.recorder.late_gaps
        return TapState(self.name(), traffic, skipped, lossy, late_gaps)


def main(descriptor: int) -> None:
    """Serve the sidecar at the other end of ``descriptor`` until it drains or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(link: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=link, limit=MAX_LINE)
    settings = read_settings(await reader.readline())
    set_up(settings.log_level)
    recorder = StreamRecorder(
        settings.thresholds,
        settings.objectives,
        settings.tenants,
        expected=settings.expected,
        probe=settings.probe,
        genai=settings.genai,
        prompt_classes=settings.prompt_classes,
    )
    taps = list(_configured_taps(settings, recorder))
    try:
        for one in taps:
            await one.tap.start()
    except InvalidFile as invalid:
        problems = [asdict(problem) for problem in invalid.problems]
        await _end(taps, writer, line({"problems": problems}))
        return
    drop_capabilities()
    writer.write(line({"started": [one.name() for one in taps]}))
    limit_garbage_collection(TAP_OLD_THRESHOLD)
    return_free_memory()

    seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    replied = asyncio.Event()
    replying = asyncio.create_task(
        _reply_to_requests(reader, writer, recorder, taps, seconds, replied)
    )
    await asyncio.wait((replying, seconds), return_when=asyncio.FIRST_COMPLETED)
    drain_seconds = seconds.result() if seconds.done() else settings.drain
    busy = recorder.live > 0
    await asyncio.gather(*(one.tap.drain(drain_seconds) for one in taps))
    if busy and not replying.done():
        # Requests that ended since the last reply are reported in one more.
        replied.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_REQUEST_SECONDS):
                await replied.wait()
    replying.cancel()
    await _end(taps, writer)


def _configured_taps(settings: TapSettings, recorder: StreamRecorder) -> Iterator[_RunningTap]:
    measure_prompts = bool(settings.prompt_classes or settings.tenant_header)
    wire = WireSettings(settings.tenant_header, os.urandom(SALT_BYTES), measure_prompts)
    for text in settings.taps:
        listener = recorder.for_another_tap()
        tap = _tap(parse(text), settings, listener, wire)
        listener.seen_until = tap.seen_until
        listener.lag = tap.lag
        yield _RunningTap(tap, listener)


def _tap(spec: Spec, settings: TapSettings, listener: StreamRecorder, wire: WireSettings) -> Tap:
    """Make a tap, importing only the modules that it needs."""
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


async def _reply_to_requests(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    recorder: StreamRecorder,
    taps: Sequence[_RunningTap],
    drain: asyncio.Future[float],
    replied: asyncio.Event,
) -> None:
    """Answer the sidecar until it ends.

    Sets ``drain`` to the requested drain time, and ``replied`` after every reply.
    """
    with suppress(ConnectionError):
        while text := await reader.readline():
            message = loads(text)
            if "drain" in message:
                drain.set_result(message["drain"])
                continue
            for one in taps:
                one.tap.flush()
            for _ in recorder.evaluate_active(monotonic()):
                await asyncio.sleep(0)
            recorder.learn_models(message.pop("known"), message.pop("reported"))
            for measurements in recorder.measurements(changed_only=True):
                writer.write(measurements_line(measurements))
                await writer.drain()
                # Yield after each model: bytes between clients and servers have priority.
                await asyncio.sleep(0)
            states = [state(one.state()) for one in taps]
            waiting = [(*model, count) for model, count in recorder.waiting().items()]
            tasks = [asdict(task) for one in taps for task in one.tap.tasks]
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
            replied.set()


async def _end(
    taps: Sequence[_RunningTap], writer: asyncio.StreamWriter, last: bytes = b""
) -> None:
    for one in taps:
        await one.tap.close()
    writer.write(last)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


if __name__ == "__main__":
    main(int(sys.argv[1]))
