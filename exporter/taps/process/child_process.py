"""Start, query and restart the tap process from the sidecar."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic
from typing import Any, Self

from exporter.background import Supervisor, TaskState
from exporter.genai import GenAiSeries
from exporter.log import LOG
from exporter.samples import Measurement, Model, SourceError
from exporter.taps.process.messages import (
    MAX_LINE,
    TapSettings,
    TapState,
    line,
    read_genai,
    read_measurements,
    read_problems,
    read_state,
    settings_line,
)
from slos.errors import InvalidFile, Problem

MODULE = f"{__package__}.worker"
START_SECONDS = 20.0
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds before a restart: doubled each time, and reset after a run of STEADY_SECONDS."""
STEADY_SECONDS = 60.0
END_SECONDS = 5.0
"""Time that the process may take to end after its drain."""


@dataclass(frozen=True, slots=True)
class TapReply:
    """Counters of the process since it started; ``live`` counts requests in flight.

    ``waiting`` counts, by model, streams that wait for a token; ``tasks`` are the background tasks
    of the process.  ``limited`` counts requests by the label that the limit turned into ``other``.
    """

    measurements: tuple[Measurement, ...]
    taps: tuple[TapState, ...]
    live: int
    waiting: Mapping[Model, int] = field(default_factory=dict)
    tasks: tuple[TaskState, ...] = ()
    genai: tuple[GenAiSeries, ...] = ()
    limited: Mapping[str, int] = field(default_factory=dict)


class _Run:
    """One process from start to end."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.taps: tuple[str, ...] = ()
        self._reader = reader
        self._writer = writer
        self._requests = 0
        self._measurements: dict[Model, tuple[Measurement, ...]] = {}

    @classmethod
    async def start(cls, settings: TapSettings) -> Self:
        """Start a process; raises InvalidFile if its taps cannot start."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", MODULE, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                # A reader of the sidecar's output gets EOF when the sidecar ends.
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        run = cls(process, *await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE))
        try:
            await run._begin(settings)
        except BaseException:
            await run.close()
            raise
        return run

    async def _begin(self, settings: TapSettings) -> None:
        self._send(settings_line(settings))
        try:
            async with asyncio.timeout(START_SECONDS):
                message = await self._read()
        except TimeoutError:
            raise _start_error(f"did not respond within {START_SECONDS:g} s") from None
        except _Ended as ended:
            raise _start_error(str(ended)) from None
        if "problems" in message:
            raise InvalidFile(read_problems(message["problems"]))
        self.taps = tuple(message["started"])

    async def snapshot(self, known: Collection[str], reported: Collection[str]) -> TapReply:
        """Fetch the models that changed, and return all; raises _Ended."""
        self._requests += 1
        number = self._requests
        self._send(line({"snapshot": number, "known": [*known], "reported": [*reported]}))
        while True:
            message = await self._read()
            if "model" in message:
                # Also from the reply of a request that timed out: each change is sent once.
                self._measurements[message["model"], message["version"]] = read_measurements(
                    message
                )
            elif message["snapshot"] == number:
                return TapReply(
                    tuple(chain.from_iterable(self._measurements.values())),
                    tuple(map(read_state, message["taps"])),
                    message["live"],
                    {(name, version): count for name, version, count in message["waiting"]},
                    tuple(TaskState(**task) for task in message["tasks"]),
                    tuple(map(read_genai, message["genai"])),
                    message["limited"],
                )

    async def drain(self, seconds: float) -> None:
        """Let the process end after its last connection, or after ``seconds``."""
        self._send(line({"drain": seconds}))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds + END_SECONDS):
                await self.process.wait()

    async def close(self) -> None:
        """Kill the process."""
        self._writer.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def _send(self, text: bytes) -> None:
        self._writer.write(text)

    async def _read(self) -> Mapping[str, Any]:
        """Read a message; raises _Ended."""
        try:
            text = await self._reader.readline()
        except ConnectionError:
            text = b""
        if not text:
            raise _Ended(_exit_reason(await self.process.wait()))
        message: Mapping[str, Any] = json.loads(text)
        return message


class TapProcess:
    """The tap process, kept running from `start` to `close`.

    ``restarts`` counts its unexpected ends.
    """

    def __init__(self, settings: TapSettings) -> None:
        self.restarts = 0
        self._settings = settings
        self._run: _Run | None = None
        self._problem = ""
        self._supervisor = Supervisor()

    @property
    def tasks(self) -> Sequence[TaskState]:
        """The task that restarts the process."""
        return self._supervisor.states

    @property
    def taps(self) -> Sequence[str]:
        """The specs of the taps, with their actual ports."""
        return self._run.taps if self._run else self._settings.taps

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        return self._run.process.pid if self._run else None

    async def start(self) -> None:
        """Start the process; raises InvalidFile if its taps cannot start."""
        self._run = await _Run.start(self._settings)
        self._supervisor.start("taps-process", self._restart_when_ended)

    async def snapshot(
        self, seconds: float, known: Collection[str] = (), reported: Collection[str] = ()
    ) -> TapReply:
        """Fetch all measurements; raises SourceError without a reply within ``seconds``.

        ``known`` are the models that the servers list; the series of those in ``reported`` exist
        before their first request.
        """
        if not self._run:
            raise SourceError("ended", f"{self._problem}; restarting it")
        try:
            async with asyncio.timeout(seconds):
                return await self._run.snapshot(known, reported)
        except TimeoutError:
            raise SourceError(
                "timeout", f"the tap process did not respond within {seconds:g} s"
            ) from None
        except _Ended as ended:
            raise SourceError("ended", f"the tap process {ended}") from None

    async def drain(self) -> None:
        """Let connections end within the configured drain time, and then the process."""
        self._supervisor.cancel()
        if self._run:
            await self._run.drain(self._settings.drain)

    async def close(self) -> None:
        """Kill the process."""
        await self._supervisor.close()
        if self._run:
            await self._run.close()

    async def _restart_when_ended(self) -> None:
        """Restart the process whenever it ends."""
        pause = FIRST_PAUSE
        while True:
            if self._run:
                began = monotonic()
                await self._ended(self._run)
                if monotonic() - began > STEADY_SECONDS:
                    pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
            try:
                self._run = await _Run.start(self._settings)
            except (InvalidFile, OSError) as error:
                self._problem = str(error).removesuffix(".")
            else:
                LOG.info("the tap process was restarted")

    async def _ended(self, run: _Run) -> None:
        """Wait for the end of a process, and log it."""
        reason = _exit_reason(await run.process.wait())
        self._run, self._problem = None, f"the tap process {reason}"
        self.restarts += 1
        LOG.error("%s; its streams are lost; restarting it", self._problem)
        await run.close()


class _Ended(Exception):  # noqa: N818 - an event
    """The process has ended; the message has the signal or status."""


def _exit_reason(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _start_error(why: str) -> InvalidFile:
    what = f"the tap process could not start: it {why}"
    return InvalidFile(
        [Problem("tokenslo exporter", 0, "tap", what, "see the log lines before this one")]
    )
