"""The sidecar's side of the process of the taps: it is started, asked, and started again."""

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
    read_problems,
    read_readings,
    read_state,
    settings_line,
)
from slos.errors import InvalidFile, Problem

MODULE = "exporter.taps.process.worker"
START_SECONDS = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a process that ended is started again: twice as long each time, and the first
again after one that held for STEADY_SECONDS."""
STEADY_SECONDS = 60.0
END_SECONDS = 5.0
"""How much longer than its drain the process may take to end."""


@dataclass(frozen=True, slots=True)
class TapReply:
    """What the process has counted since it began; ``live`` are the requests under way.

    ``waiting`` counts the streams of each model that wait for a token, and ``tasks`` are the
    process's background tasks.  ``limited`` counts requests by the label that is ``other``.
    """

    measurements: tuple[Measurement, ...]
    taps: tuple[TapState, ...]
    live: int
    waiting: Mapping[Model, int] = field(default_factory=dict)
    tasks: tuple[TaskState, ...] = ()
    genai: tuple[GenAiSeries, ...] = ()
    limited: Mapping[str, int] = field(default_factory=dict)


class _Run:
    """One process, from its start to its end."""

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
        self._surveys = 0
        self._readings: dict[Model, tuple[Measurement, ...]] = {}

    @classmethod
    async def start(cls, settings: TapSettings) -> Self:
        """Start a process; raises InvalidFile if its taps cannot be had."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", MODULE, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,  # which is held no longer than the sidecar lives
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
            raise _unusable(f"nothing was heard of it for {START_SECONDS:g} s") from None
        except _Ended as ended:
            raise _unusable(str(ended)) from None
        if "problems" in message:
            raise InvalidFile(read_problems(message["problems"]))
        self.taps = tuple(message["started"])

    async def snapshot(self, known: Collection[str], reported: Collection[str]) -> TapReply:
        """Ask for the models that changed, and return all; raises _Ended."""
        self._surveys += 1
        number = self._surveys
        self._send(line({"survey": number, "known": [*known], "reported": [*reported]}))
        while True:
            message = await self._read()
            if "model" in message:
                # Also of an answer that was not waited for: each change is sent once.
                self._readings[message["model"], message["version"]] = read_readings(message)
            elif message["survey"] == number:
                return TapReply(
                    tuple(chain.from_iterable(self._readings.values())),
                    tuple(map(read_state, message["taps"])),
                    message["live"],
                    {(name, version): count for name, version, count in message["waiting"]},
                    tuple(TaskState(**task) for task in message["tasks"]),
                    tuple(map(read_genai, message["genai"])),
                    message["limited"],
                )

    async def drain(self, seconds: float) -> None:
        """Have it end when its connections have, after ``seconds`` at the latest."""
        self._send(line({"drain": seconds}))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds + END_SECONDS):
                await self.process.wait()

    async def close(self) -> None:
        """End it now."""
        self._writer.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def _send(self, text: bytes) -> None:
        self._writer.write(text)

    async def _read(self) -> Mapping[str, Any]:
        """Read a line; raises _Ended."""
        try:
            text = await self._reader.readline()
        except ConnectionError:
            text = b""
        if not text:
            raise _Ended(_how(await self.process.wait()))
        message: Mapping[str, Any] = json.loads(text)
        return message


class TapProcess:
    """The process of the taps, kept running from `start` to `close`.

    ``restarts`` counts how often it ended unasked.
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
        """What runs, with the ports that are really had."""
        return self._run.taps if self._run else self._settings.taps

    async def start(self) -> None:
        """Start it; raises InvalidFile if its taps cannot be had."""
        self._run = await _Run.start(self._settings)
        self._supervisor.start("taps-process", self._keep)

    async def snapshot(
        self, seconds: float, known: Collection[str] = (), reported: Collection[str] = ()
    ) -> TapReply:
        """Ask for everything; raises SourceError if there is no answer within ``seconds``.

        ``known`` are the models that the servers list, ``reported`` those of them whose series
        begin before their first request.
        """
        if not self._run:
            raise SourceError("ended", f"{self._problem}; it is being started again")
        try:
            async with asyncio.timeout(seconds):
                return await self._run.snapshot(known, reported)
        except TimeoutError:
            raise SourceError("timeout", f"the taps did not answer within {seconds:g} s") from None
        except _Ended as ended:
            raise SourceError("ended", f"the process of the taps {ended}") from None

    async def drain(self) -> None:
        """Let connections end, for as long as the settings say, and the process with them."""
        self._supervisor.cancel()
        if self._run:
            await self._run.drain(self._settings.drain)

    async def close(self) -> None:
        """End it now."""
        await self._supervisor.close()
        if self._run:
            await self._run.close()

    async def _keep(self) -> None:
        """Restart the process whenever it ends."""
        pause = FIRST_PAUSE
        while True:
            if self._run:
                began = monotonic()
                await self._ended(self._run)
                if monotonic() - began > STEADY_SECONDS:
                    pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._run = await _Run.start(self._settings)
            except (InvalidFile, OSError) as error:
                self._problem = str(error).removesuffix(".")
            else:
                LOG.info("the process of the taps runs again")

    async def _ended(self, run: _Run) -> None:
        """Wait until a process has ended."""
        how = _how(await run.process.wait())
        self._run, self._problem = None, f"the process of the taps {how}"
        self.restarts += 1
        LOG.error("%s; the streams that it had are lost; restarting it", self._problem)
        await run.close()


class _Ended(Exception):  # noqa: N818 - an event
    """The process is not there any more; the text says how it ended."""


def _how(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _unusable(why: str) -> InvalidFile:
    what = f"the process of the taps could not be started: it {why}"
    return InvalidFile(
        [Problem("tokenslo exporter", 0, "tap", what, "see what it wrote before this line")]
    )
