"""Open and closed loops of a load test, in virtual time."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from loadtest.arrivals import poisson_arrivals
from loadtest.level import LevelRun, run_level
from loadtest.level_result import level_result
from loadtest.objectives import ClientObjective
from loadtest.settings import LoadLevel, PromptClass, Workload, plan_request
from tests.simulated_endpoint import SimulatedClient, measured_times
from tests.virtual_time import run_virtually

WORK = Workload((PromptClass(8),), 5, warm_up=2.0, duration=10.0, cool_down=1.0)
OPEN, CLOSED = LoadLevel("rate", 20.0), LoadLevel("concurrency", 4)


def run(client: SimulatedClient, level: LoadLevel, work: Workload = WORK) -> LevelRun:
    return run_virtually(run_level(client, level, work))


def test_client_times_are_those_of_the_server() -> None:
    result = run(SimulatedClient(first=0.1, gap=0.02), CLOSED)
    assert result.measured
    for record in result.records:
        assert record.ttft == pytest.approx(0.1)
        assert record.gaps == pytest.approx([0.02] * 4)
        assert record.tpot == pytest.approx(0.02)
        assert record.e2e == pytest.approx(0.18)
        assert record.lag == 0


def test_closed_loop_keeps_its_concurrency() -> None:
    client = SimulatedClient()
    result = run(client, CLOSED)
    assert client.most == 4
    # 4 users with a request of 0.18 s each, over 13 s; each ends the request that it has begun.
    assert len(result.records) == pytest.approx(4 * 13 / 0.18, abs=4)


def test_warm_up_and_cool_down_are_not_measured() -> None:
    for level in (OPEN, CLOSED):
        result = run(SimulatedClient(), level)
        assert (result.begin, result.end) == (2.0, 12.0)
        assert {record.measured for record in result.records} == {True, False}
        assert 2 <= min(measured_times(result)) <= max(measured_times(result)) < 12
        later = [one.scheduled for one in result.records if one.scheduled >= 12]
        assert 12 <= min(later) <= max(later) < 13


def test_open_loop_keeps_its_schedule_while_the_server_stalls() -> None:
    stalling = SimulatedClient(stalls=((4.0, 9.0),))
    result = run(stalling, OPEN)
    assert stalling.sent == run_sent()
    assert max(record.lag for record in result.records) == pytest.approx(0, abs=1e-9)
    # What arrives in the stall waits for its end: the delay is measured, not omitted.
    ttfts = [one.ttft for one in result.measured if 4.0 <= one.scheduled < 8.9 and one.ttft]
    assert len(ttfts) == pytest.approx(20 * 4.9, rel=0.3)
    assert max(ttfts) == pytest.approx(5.0, abs=0.3)
    assert sum(ttfts) / len(ttfts) == pytest.approx(2.5, abs=0.3)


def run_sent() -> list[float]:
    """Return when an open loop sends to a server that does not stall."""
    client = SimulatedClient()
    run(client, OPEN)
    return client.sent


def test_delay_of_late_requests_counts_from_the_scheduled_start() -> None:
    """With a limit in flight, a stall delays sends; times from the send would hide that."""
    client = SimulatedClient(stalls=((4.0, 9.0),))
    result = run(client, OPEN, replace(WORK, max_in_flight=4))
    assert client.most <= 4
    late = [record for record in result.measured if record.lag > 1]
    assert len(late) > 50
    objective = ClientObjective("chat/first", "ttft", 0.95, 0.5)
    summary = level_result([result], [objective], 0.95)
    sent, scheduled = summary.latencies["ttft"], summary.latencies["scheduled_ttft"]
    assert sent is not None
    assert scheduled is not None
    assert sent.p50 < 0.2  # the coordinated omission
    assert scheduled.p90 > 2
    assert summary.lag is not None
    assert summary.lag.max == pytest.approx(5, abs=0.5)
    assert summary.objectives[0].bad >= len(late)


def test_arrivals_are_a_poisson_process() -> None:
    """Kolmogorov-Smirnov test of the gaps, and the variance of counts, for a fixed seed."""
    rate = 50.0
    times = list(poisson_arrivals(rate, 100.0, 7))
    gaps = sorted(after - before for before, after in pairwise([0.0, *times]))
    number = len(gaps)
    distance = max(
        max((index + 1) / number - share, share - index / number)
        for index, gap in enumerate(gaps)
        if (share := 1 - math.exp(-rate * gap)) is not None
    )
    assert distance < 1.63 / math.sqrt(number)  # the critical value at 1 %
    assert number == pytest.approx(rate * 100, abs=3 * math.sqrt(rate * 100))
    counts = [sum(second <= time < second + 1 for time in times) for second in range(100)]
    mean = sum(counts) / 100
    variance = sum((count - mean) ** 2 for count in counts) / 99
    assert 0.65 < variance / mean < 1.45  # chi-square with 99 degrees of freedom, 99.8 %
    assert times == list(poisson_arrivals(rate, 100.0, 7))
    assert times != list(poisson_arrivals(rate, 100.0, 8))


def test_constant_gaps_fail_the_test_of_a_poisson_process() -> None:
    """The bound of the test above can fail: constant gaps are far from exponential."""
    share = 1 - math.exp(-1.0)
    assert max(share, 1 - share) > 1.63 / math.sqrt(5000)


def test_an_interruption_returns_what_was_measured() -> None:
    async def interrupted() -> LevelRun:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(5.05, stop.set)
        return await run_level(SimulatedClient(), CLOSED, WORK, stop=stop)

    result = run_virtually(interrupted())
    assert (result.begin, result.end) == (2.0, pytest.approx(5.05))
    assert result.unfinished == 4
    assert len(result.measured) == pytest.approx(4 * 3 / 0.18, abs=8)
    summary = level_result([result], [], 0.95)
    assert summary.seconds == pytest.approx(3.05)
    assert summary.unfinished == 4


def test_throughput_is_that_of_the_window() -> None:
    result = level_result([run(SimulatedClient(), CLOSED)], [], 0.95)
    assert result.output_tokens == pytest.approx(4 * 5 / 0.18, rel=0.02)
    assert result.completed == pytest.approx(4 / 0.18, rel=0.03)
    assert result.offered == result.completed
    assert result.counted


def test_prompts_are_drawn_by_weight_and_are_the_same_for_a_seed() -> None:
    work = replace(WORK, prompts=(PromptClass(4, 3.0), PromptClass(16, 1.0)), cancelled=0.25)
    plans = [plan_request(work, number) for number in range(2000)]
    short = sum(plan.prompt.words == 4 for plan in plans) / 2000
    assert short == pytest.approx(0.75, abs=0.04)
    cancelled = [plan for plan in plans if plan.cancel_after is not None]
    assert len(cancelled) / 2000 == pytest.approx(0.25, abs=0.04)
    assert {plan.cancel_after for plan in cancelled} == {1, 2, 3, 4}
    assert all(len(plan.text.split()) == plan.prompt.words for plan in plans)
    long = [plan.text for plan in plans if plan.prompt.words == 16]
    assert len({*long}) == len(long)  # no prefix cache has them
    assert plans == [plan_request(work, number) for number in range(2000)]
    assert plans != [plan_request(replace(work, seed=1), number) for number in range(2000)]


def test_results_by_prompt_class() -> None:
    work = replace(WORK, prompts=(PromptClass(4), PromptClass(16)))
    result = level_result([run(SimulatedClient(), OPEN, work)], [], 0.95)
    assert [each.prompt for each in result.prompts] == ["4", "16"]
    assert [each.input_tokens for each in result.prompts] == [4, 16]
    assert sum(each.requests for each in result.prompts) == result.requests


def test_text_of_prompts_is_in_no_representation() -> None:
    plan = plan_request(WORK, 1)
    assert plan.text.split()[0] not in repr(plan).split()
    assert plan.text not in repr(plan)
