"""Run a simulated engine in real time on a thread of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

from lab.engine import EngineStep, SimulatedEngine
from lab.engine_events import EngineEvent, EngineRequest
from lab.engine_faults import HEALTHY, FaultsFile
from lab.iteration_stats import IterationStats

Listener = Callable[[EngineEvent], None]
Observer = Callable[[float, EngineStep], None]

# executor.h, iter_stats_max_iterations: older records are dropped silently.
_MAX_RECORDS = 1000
_FAULTS_SECONDS = 0.1
"""Interval between reads of the faults file."""


class Driver:
    """An engine and its thread; times are seconds since the epoch, derived from a monotonic clock.

    Any thread may submit, cancel and read statistics.  A request's events go to its listener, in
    order, on the engine's thread, while the next batch is running.  The observer gets every step
    and its time before the step's events are delivered.  Listeners and observers must return
    quickly and must not raise.  Faults come from the engine's faults file, if it has one.
    """

    def __init__(self, engine: SimulatedEngine, observer: Observer | None = None) -> None:
        self._engine = engine
        self._observer = observer
        self._file, self._faults = FaultsFile(engine.settings.faults_file), HEALTHY
        self._faults_at = float("-inf")
        self._listeners: dict[int, Listener] = {}
        self._records: deque[IterationStats] = deque(maxlen=_MAX_RECORDS)
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._closed = threading.Event()
        self._epoch = time.time() - time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest, listener: Listener) -> int:
        """Queue a request and return its id; raises ValueError if it exceeds a limit."""
        with self._lock:
            request_id = self._engine.submit(request, self._now())
            self._listeners[request_id] = listener
            self._work.set()
        return request_id

    def cancel(self, request_id: int) -> None:
        """Cancel a request at the next step."""
        with self._lock:
            self._engine.cancel(request_id)

    @property
    def epoch(self) -> float:
        """Seconds since the epoch at time 0 of the monotonic clock."""
        return self._epoch

    def drain_stats(self) -> list[IterationStats]:
        """Return the iteration records since the last call, at most the latest 1,000."""
        with self._lock:
            records = list(self._records)
            self._records.clear()
        return records

    def close(self) -> None:
        """Stop the thread; running requests get no further events."""
        self._closed.set()
        self._work.set()
        self._thread.join()

    def _now(self) -> float:
        return self._epoch + time.monotonic()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._read_faults()
            if self._faults.stalled:
                self._closed.wait(_FAULTS_SECONDS)
                continue
            with self._lock:
                self._work.clear()
                now = self._now()
                step = self._engine.step(now)
                if step.stats:
                    self._records.append(step.stats)
                calls = [(self._listener(event), event) for event in step.events]
            if self._observer:
                self._observer(now, step)
            for listener, event in calls:
                listener(event)
            if step.seconds is None:
                self._work.wait(_FAULTS_SECONDS if self._file else None)
            else:
                self._sleep_until(now + step.seconds)

    def _read_faults(self) -> None:
        if not self._file or (now := time.monotonic()) < self._faults_at + _FAULTS_SECONDS:
            return
        self._faults_at, faults = now, self._file.read()
        if faults.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if faults != self._faults:
            self._faults = faults
            with self._lock:
                self._engine.apply(faults)

    def _listener(self, event: EngineEvent) -> Listener:
        if event.final:
            return self._listeners.pop(event.request_id)
        return self._listeners[event.request_id]

    def _sleep_until(self, deadline: float) -> None:
        while (remaining := deadline - self._now()) > 0 and not self._closed.wait(remaining):
            pass
