"""Read TensorRT-LLM's iteration records from trtllm-serve's ``GET /metrics`` or from a file.

The endpoint returns every record once, to the first reader, from a queue that silently drops the
oldest (``iter_stats_max_iterations``, 1000).  Responses may be slow: the first releases answer only
after 2 s without a record, so never under steady traffic, later ones after about 2 s, the newest
immediately (tensorrt_llm/serve/openai_server.py).  So a request outlives the snapshot that sent it:
it continues in the background, and records are used as they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import PurePath
from time import monotonic

from exporter.background import Supervisor, TaskState, cancel
from exporter.samples import Missing, ModelInfo, Snapshot, SourceError
from exporter.sources import BaseSource
from exporter.sources.fetch import receive
from exporter.sources.file_tailer import FileTailer
from exporter.sources.http_source import HttpSource, Parts, attempt
from exporter.sources.trtllm.iterations.engine import EngineState
from exporter.sources.trtllm.iterations.json_splitter import JsonSplitter
from exporter.sources.trtllm.iterations.records import read_record
from exporter.sources.trtllm.iterations.report import GAUGES, report
from promql.http_client import FetchLimits

BACKEND = "trtllm-serve"

QUEUE = 1000
"""Records that a server keeps (iter_stats_max_iterations)."""

FILL = 0.25
"""How full the server's queue may get before it is read again."""

MIN_PAUSE, MAX_PAUSE = 0.05, 1.0
SERVER_GONE = ("refused", "unreachable")
"""Failures after which another server may answer."""

HELD_OPEN_SECONDS = 3.0
"""Seconds after which a request that is held open is reported; 2 s are usual."""


class RecordIntake:
    """Adds records to an engine's state and counts malformed ones.

    ``clock`` returns seconds that do not go backwards.
    """

    def __init__(
        self, thresholds: Mapping[str, Iterable[float]] | None, clock: Callable[[], float]
    ) -> None:
        self.engine = EngineState(thresholds)
        self.malformed = 0
        self._clock = clock
        self._last: float | None = None
        self._reported_lost = self._reported_malformed = 0

    @property
    def age(self) -> float | None:
        """Seconds since the last record came, None before the first."""
        return None if self._last is None else self._clock() - self._last

    def end_history(self) -> None:
        """Mark later records as newer than the sidecar, unless earlier ones are counted already."""
        recorder = self.engine.recorder
        if recorder.start_time is None and not self.engine.records:
            recorder.start_time = self._clock()

    def add(self, value: object) -> None:
        """Add a record; anything else is malformed."""
        record = read_record(value)
        if record is None:
            self.malformed += 1
            return
        self.engine.add(record)
        self._last = self._clock()

    def snapshot(
        self,
        source: str,
        model: str,
        version: str,
        frozen_after: float,
        parts: Mapping[str, SourceError | None],
    ) -> Snapshot:
        """Return a snapshot of the engine."""
        measurements, missing = report(self.engine, self.age, frozen_after, model, version)
        return Snapshot(
            source=source,
            measurements=measurements,
            missing=missing,
            models=(ModelInfo(model, version, BACKEND, decoupled=True),),
            engine_stats_age={} if self.age is None else {(model, version): self.age},
            parts={**parts, "records": self._problem()},
            lost_records=self.engine.lost,
        )

    def _problem(self) -> SourceError | None:
        """Return lost or malformed records since the last call as an error, else None."""
        lost = self.engine.lost - self._reported_lost
        malformed = self.malformed - self._reported_malformed
        self._reported_lost, self._reported_malformed = self.engine.lost, self.malformed
        if lost:
            return SourceError(
                "lost",
                f"{lost} iteration records are missing: each is handed out once, so another reader "
                "(a second sidecar, a Prometheus, Dynamo) took them, or trtllm-serve dropped them "
                "from its queue; let only one read them, and raise iter_stats_max_iterations",
            )
        if malformed:
            return SourceError("malformed", f"{malformed} objects are no iteration records")
        return None


class IterationsSource(HttpSource):
    """Reads the iteration records of one trtllm-serve.

    ``url`` is the server's address, without path.  ``model`` is the name to report under; without
    it the server's own at /v1/models.  ``thresholds`` are SLO thresholds in seconds by signal.  An
    engine with active sequences and no record for ``frozen_after`` seconds has its gauges refused.
    A request times out after ``hold`` seconds; the records it has received stay.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        version: str = "",
        thresholds: Mapping[str, Iterable[float]] | None = None,
        limits: FetchLimits | None = None,
        frozen_after: float = 5.0,
        hold: float = 300.0,
        name: str = "trtllm-iterations",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(name, url, limits)
        self._model = model
        self._served: str | None = None
        self._version = version
        self._frozen_after = frozen_after
        self._hold = hold
        self._clock = clock
        self._intake = RecordIntake(thresholds, clock)
        self._poll: asyncio.Task[None] | None = None
        self._supervisor: Supervisor | None = None
        self._requested_at = self._drained_at = -inf
        self._error: SourceError | None = None
        self._has_succeeded = False
        self.pause = MAX_PAUSE

    async def close(self) -> None:
        """Stop polling and close the connections; a later snapshot starts again."""
        if self._supervisor:
            await self._supervisor.close()
        await cancel(self._poll)
        self._supervisor = self._poll = None
        await super().close()

    def tasks(self) -> Sequence[TaskState]:
        """Return the state of the task that polls between snapshots."""
        return self._supervisor.states if self._supervisor else ()

    async def snapshot(self, now: float) -> Snapshot:
        """Poll once, or use the records so far of a request that is still open.

        Raises SourceError if nothing could be read now or before.
        """
        parts: Parts = {}
        poll = self._request()
        if self._supervisor is None:
            self._supervisor = Supervisor()
            self._supervisor.start(f"{self.name}-poll", self._poll_steadily)
        if not self._model and self._served is None:
            await attempt(parts, "models", self._read_name())
        await asyncio.wait([poll], timeout=self._limits.timeout)
        if poll.done():
            poll.result()
        model = self._model or self._served
        parts["metrics"] = self._error or self._held_open()
        if model is None or (parts["metrics"] and not self._has_succeeded):
            problem = parts["metrics"] or parts.get("models")
            if problem:
                raise problem
        snapshot = self._intake.snapshot(
            self.name, model or BACKEND, self._version, self._frozen_after, parts
        )
        return _without_gauges(snapshot, parts["metrics"]) if parts["metrics"] else snapshot

    def _request(self) -> asyncio.Task[None]:
        """Return the open request, or start one."""
        if self._poll is None or self._poll.done():
            self._requested_at = self._clock()
            self._poll = asyncio.create_task(self._drain())
        return self._poll

    async def _poll_steadily(self) -> None:
        """Poll between snapshots, at the rate at which the server's queue fills."""
        while True:
            left = self._requested_at + self.pause - self._clock()
            if left <= 0:
                await asyncio.wait([self._request()])
            await asyncio.sleep(max(left, MIN_PAUSE))

    async def _drain(self) -> None:
        """Make one request and add every record as it arrives."""
        splitter, before = JsonSplitter(), self._intake.engine.records

        def take(data: bytes) -> None:
            for value in splitter.feed(data):
                self._intake.add(value)

        limits = FetchLimits(self._hold, self._limits.max_bytes)
        try:
            await receive(self._opened(), "GET", f"{self.url}/metrics", take, limits=limits)
            self._error, self._has_succeeded = None, True
        except SourceError as error:
            self._error = error
            if error.kind in SERVER_GONE:
                self._served = None
        for value in splitter.end():
            self._intake.add(value)
        self._intake.malformed += splitter.malformed
        if self._error is None:
            self._intake.end_history()
        previous, self._drained_at = self._drained_at, self._clock()
        seconds = MAX_PAUSE if previous == -inf else self._drained_at - previous
        self.pause = pause_for(self._intake.engine.records - before, seconds)

    def _held_open(self) -> SourceError | None:
        """Return an error if the server holds the request open, else None."""
        seconds = self._clock() - self._requested_at
        if self._poll is None or self._poll.done() or seconds < HELD_OPEN_SECONDS:
            return None
        return SourceError(
            "held",
            f"{self.where}/metrics has not answered for {seconds:.0f} s: trtllm-serve before 1.2 "
            "answers only when no iteration was run for 2 s; upgrade it, or give its records as a "
            "file",
        )

    async def _read_name(self) -> None:
        self._served = served_model(await self.get_json("/v1/models"))
        if self._served is None:
            raise SourceError("malformed", f"{self.where}/v1/models names no model")


class IterationsFileSource(BaseSource):
    """Tails a file to which iteration records are appended, one JSON object per line.

    Records that the file holds at the first read are skipped.  ``path`` may be a pattern of files,
    ``model`` is the name to report under; see :class:`IterationsSource` for the rest.
    """

    def __init__(
        self,
        path: str,
        *,
        model: str = "",
        version: str = "",
        thresholds: Mapping[str, Iterable[float]] | None = None,
        limits: FetchLimits | None = None,
        frozen_after: float = 5.0,
        name: str = "trtllm-iterations-file",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self.where = path
        self._files = FileTailer(path, (limits or FetchLimits()).max_bytes)
        self._model = model or PurePath(path).stem
        self._version = version
        self._frozen_after = frozen_after
        self._intake = RecordIntake(thresholds, clock)

    async def close(self) -> None:
        """Close the files; a later snapshot opens them again."""
        self._files.close()

    async def snapshot(self, now: float) -> Snapshot:
        """Read appended records.  Raises SourceError if there is no file."""
        before = self._files.malformed
        for value in await asyncio.to_thread(lambda: list(self._files.read())):
            self._intake.add(value)
        self._intake.end_history()
        if self._files.error or not self._files.files:
            raise SourceError("unreadable", self._files.error or f"{self.where}: there is no file")
        self._intake.malformed += self._files.malformed - before
        lost = self._files.new_losses()
        parts = {"files": SourceError("lost", lost) if lost else None}
        return self._intake.snapshot(
            self.name, self._model, self._version, self._frozen_after, parts
        )


def pause_for(records: int, seconds: float) -> float:
    """Return the pause in seconds after ``records`` arrived in ``seconds``.

    At that rate the server's queue fills to a quarter until the next request.
    """
    rate = records / max(seconds, MIN_PAUSE)
    return min(MAX_PAUSE, max(MIN_PAUSE, FILL * QUEUE / rate)) if rate else MAX_PAUSE


def served_model(document: object) -> str | None:
    """Return the first model in a response of /v1/models."""
    data = document.get("data") if isinstance(document, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) and name else None


def _without_gauges(snapshot: Snapshot, why: SourceError) -> Snapshot:
    """Return the snapshot without its gauges, whose age is unknown."""
    kept = tuple(one for one in snapshot.measurements if one.signal not in GAUGES)
    gone = tuple(
        Missing(one.signal, one.model, one.version, str(why), "see the source", unread=True)
        for one in snapshot.measurements
        if one.signal in GAUGES
    )
    return replace(snapshot, measurements=kept, missing=(*snapshot.missing, *gone))
