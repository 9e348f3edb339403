"""Faults of a running engine, in virtual time and from a file that the driver polls."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab import driver as driver_module
from lab.driver import Driver
from lab.engine import SimulatedEngine
from lab.engine_events import EngineEvent, EngineRequest
from lab.engine_faults import EngineFaults, FaultsFile, simulate_load, write_faults
from lab.engine_settings import EngineSettings
from tests.polling import wait_until

PATIENCE = 20.0
ROOT = Path(__file__).parents[1]
STEADY = EngineSettings(jitter=0, step_seconds=0.01, sequence_seconds=0, max_batch_size=4)


def engine(faults: EngineFaults, settings: EngineSettings = STEADY) -> SimulatedEngine:
    simulated = SimulatedEngine(settings)
    simulated.apply(faults)
    return simulated


def played(
    simulated: SimulatedEngine, *requests: EngineRequest, steps: int = 1000
) -> tuple[float, list[EngineEvent]]:
    """Submit requests, run the engine until it is idle, and return its time and events."""
    now, events = 0.0, list[EngineEvent]()
    for request in requests:
        simulated.submit(request, now)
    for _ in range(steps):
        step = simulated.step(now)
        events += step.events
        if step.seconds is None:
            break
        now += step.seconds
    return now, events


def request(tokens: int = 10, prompt: int = 100) -> EngineRequest:
    return EngineRequest(tuple(range(prompt)), tokens)


def test_factors_multiply_the_time_of_decoding_and_of_prompts() -> None:
    seconds = {
        name: played(engine(faults), request())[0]
        for name, faults in {
            "none": EngineFaults(),
            "step": EngineFaults(step_factor=3),
            "prefill": EngineFaults(prefill_factor=5),
        }.items()
    }
    prefill = 100 * STEADY.context_token_seconds
    assert seconds["none"] == pytest.approx(10 * 0.01 + prefill)
    assert seconds["step"] == pytest.approx(30 * 0.01 + prefill)
    assert seconds["prefill"] == pytest.approx(10 * 0.01 + 5 * prefill)


def test_a_share_of_requests_fails_before_or_after_the_first_token() -> None:
    _, events = played(engine(EngineFaults(fail_share=0.5)), *[request()] * 200)
    reasons = {event.request_id: event for event in events if event.final}
    failed = {key for key, event in reasons.items() if event.finish_reason == "error"}
    assert 60 < len(failed) < 140
    began = {event.request_id for event in events if event.index == 0}
    assert failed & began
    assert failed - began


def test_empty_answers_end_after_one_token_without_text() -> None:
    _, events = played(engine(EngineFaults(answers="empty")), request())
    assert [(event.text, event.final) for event in events] == [("", True)]


def test_garbage_has_the_length_of_an_answer() -> None:
    _, events = played(engine(EngineFaults(answers="garbage")), request())
    assert [event.text for event in events] == ["\N{REPLACEMENT CHARACTER} "] * 10


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_a_smaller_pool_delays_requests_and_loses_none(policy: str) -> None:
    settings = replace(STEADY, policy=policy, kv_blocks=40, tokens_per_block=8)
    simulated = SimulatedEngine(settings)
    for number in range(8):
        simulated.submit(EngineRequest((f"p{number}",) * 20, 20), 0.0)
    now, ended, paused = 0.0, 0, 0
    for count in range(2000):
        if count == 5:
            simulated.apply(EngineFaults(kv_blocks=10))
        step = simulated.step(now)
        ended += sum(event.finish_reason == "length" for event in step.events)
        if step.stats:
            cache = step.stats.kvCacheStats
            assert count == 5 or cache.usedNumBlocks <= cache.maxNumBlocks
            paused += step.stats.inflightBatchingStats.numPausedRequests
        if step.seconds is None:
            break
        now += step.seconds
    assert ended == 8
    assert cache.maxNumBlocks == 10
    assert (paused > 0) == (policy == "max_utilization")


def test_a_pool_that_has_grown_back_is_used() -> None:
    simulated = engine(EngineFaults(kv_blocks=10))
    simulated.apply(EngineFaults())
    step = [simulated.submit(request(), 0.0), simulated.step(0.0)][1]
    assert step.stats
    assert step.stats.kvCacheStats.maxNumBlocks == STEADY.kv_blocks


def test_ignored_cancellations_leave_a_request_running() -> None:
    simulated = engine(EngineFaults(ignore_cancel=True))
    simulated.cancel(simulated.submit(request(), 0.0))
    _, events = played(simulated)
    assert events[-1].finish_reason == "length"


# The driver


@pytest.fixture
def faults_file(tmp_path: Path) -> Path:
    return tmp_path / "faults.json"


@pytest.fixture
def driver(faults_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(driver_module, "_FAULTS_SECONDS", 0.005)
    settings = replace(STEADY, step_seconds=0.002, faults_file=str(faults_file))
    running = Driver(SimulatedEngine(settings))
    yield running
    running.close()


def test_a_stalled_engine_generates_no_token_until_the_fault_ends(
    driver: Driver, faults_file: Path
) -> None:
    events: queue.Queue[EngineEvent] = queue.Queue()
    driver.submit(EngineRequest(("a",), 4000), events.put)
    events.get(timeout=PATIENCE)
    write_faults(faults_file, EngineFaults(stalled=True))

    def is_still() -> bool:
        before = events.qsize()
        time.sleep(0.05)  # 25 steps of a running engine
        return events.qsize() == before

    wait_until(is_still, PATIENCE)
    stalled_at = events.qsize()
    faults_file.unlink()
    wait_until(lambda: events.qsize() > stalled_at, PATIENCE)


def test_an_idle_driver_applies_faults_to_the_next_request(
    driver: Driver, faults_file: Path
) -> None:
    write_faults(faults_file, EngineFaults(answers="empty"))

    def answered() -> str:
        events: queue.Queue[EngineEvent] = queue.Queue()
        driver.submit(EngineRequest(("a",), 1), events.put)
        return events.get(timeout=PATIENCE).text

    wait_until(lambda: answered() == "", PATIENCE)


def test_a_crash_kills_the_process_of_the_engine(faults_file: Path) -> None:
    write_faults(faults_file, EngineFaults(crash=True))
    code = (
        "import sys, threading\n"
        "from lab.driver import Driver, SimulatedEngine\n"
        "from lab.engine_settings import EngineSettings\n"
        "Driver(SimulatedEngine(EngineSettings(faults_file=sys.argv[1])))\n"
        "threading.Event().wait()\n"
    )
    command = [sys.executable, "-c", code, str(faults_file)]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False).returncode == -9


# The file


def test_a_file_is_read_again_only_when_it_has_changed(
    faults_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = FaultsFile(str(faults_file)), []
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: reads.append(path) or read_text(path))
    assert file.read() == EngineFaults()
    for factor in (2.0, 3.0):
        write_faults(faults_file, EngineFaults(step_factor=factor))
        assert [file.read().step_factor for _ in range(3)] == [factor] * 3
    assert len(reads) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"stall": true}', "stall is no fault"),
        ('{"answers": "odd"}', "answers 'odd' is none of normal, empty, garbage"),
        ('{"fail_share": 2}', "fail_share must be 0 to 1"),
        ('{"step_factor": 0}', "step_factor and prefill_factor must be positive"),
        ('{"kv_blocks": 0}', "kv_blocks must be at least 1"),
    ],
)
def test_an_invalid_file_is_an_error(faults_file: Path, text: str, problem: str) -> None:
    faults_file.write_text(text)
    with pytest.raises(ValueError, match=problem):
        FaultsFile(str(faults_file)).read()


def test_a_model_loads_late_or_fails_to_load(faults_file: Path) -> None:
    write_faults(faults_file, EngineFaults(load_seconds=0.05, load_error="out of memory"))
    before = time.monotonic()
    with pytest.raises(RuntimeError, match="out of memory"):
        simulate_load(str(faults_file))
    assert time.monotonic() - before >= 0.05
    simulate_load("")
