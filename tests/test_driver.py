"""The simulated engine in real time, driven by its own thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from lab.driver import Driver
from lab.engine import SimulatedEngine
from lab.engine_events import EngineEvent, EngineRequest
from lab.engine_settings import EngineSettings

STEP = 0.005
PATIENCE = 10.0


@pytest.fixture
def driver() -> Iterator[Driver]:
    settings = EngineSettings(step_seconds=STEP, sequence_seconds=0, context_token_seconds=0)
    running = Driver(SimulatedEngine(settings))
    yield running
    running.close()


def collect(events: queue.Queue[EngineEvent]) -> list[EngineEvent]:
    found = [events.get(timeout=PATIENCE)]
    while not found[-1].final:
        found.append(events.get(timeout=PATIENCE))
    return found


def test_a_listener_gets_its_own_tokens_in_order_and_at_the_pace(driver: Driver) -> None:
    before = time.time()
    inboxes: list[queue.Queue[EngineEvent]] = [queue.Queue() for _ in range(3)]
    ids = [driver.submit(EngineRequest(("a", n), 10), inbox.put) for n, inbox in enumerate(inboxes)]
    for request_id, inbox in zip(ids, inboxes, strict=True):
        events = collect(inbox)
        assert [(e.request_id, e.index) for e in events] == [(request_id, n) for n in range(10)]
        assert before < events[0].time < events[-1].time <= time.time() + 0.001
        assert events[-1].time - events[0].time >= 0.7 * 9 * STEP


def test_a_cancelled_request_ends_early(driver: Driver) -> None:
    inbox: queue.Queue[EngineEvent] = queue.Queue()
    request_id = driver.submit(EngineRequest(("a",), 4000), inbox.put)
    inbox.get(timeout=PATIENCE)
    driver.cancel(request_id)
    assert collect(inbox)[-1].finish_reason == "cancelled"


def test_statistics_are_drained_once_and_an_idle_engine_emits_none(driver: Driver) -> None:
    for _ in range(2):
        inbox: queue.Queue[EngineEvent] = queue.Queue()
        driver.submit(EngineRequest(("a",), 3), inbox.put)
        collect(inbox)
        records = driver.drain_stats()
        assert [record.numActiveRequests for record in records] == [1, 1, 1, 0]
        time.sleep(5 * STEP)  # the next records would include steps taken in this time
        assert driver.drain_stats() == []


def test_an_idle_engine_uses_no_cpu(driver: Driver) -> None:
    inbox: queue.Queue[EngineEvent] = queue.Queue()
    driver.submit(EngineRequest(("a",), 1), inbox.put)
    collect(inbox)
    before = time.process_time()
    time.sleep(0.2)  # a busy wait would use all of it
    assert time.process_time() - before < 0.1


def test_an_invalid_request_is_refused_at_once(driver: Driver) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        driver.submit(EngineRequest((), 1), print)


def test_closing_ends_the_thread_during_a_step() -> None:
    driver = Driver(SimulatedEngine(EngineSettings(step_seconds=60)))
    driver.submit(EngineRequest(("a",), 1), print)
    started = time.monotonic()
    driver.close()
    assert time.monotonic() - started < PATIENCE
    assert "engine" not in {thread.name for thread in threading.enumerate()}
