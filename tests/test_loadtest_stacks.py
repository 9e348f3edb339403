"""Two stacks side by side, crossovers and saturation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from loadtest.crossover import crossovers
from loadtest.level import LevelRun, run_level
from loadtest.objectives import ClientObjective
from loadtest.records import RequestRecord
from loadtest.session import LoadTest, LoadTestResult, run_load_test
from loadtest.settings import LoadEndpoint, LoadLevel, PromptClass, Workload
from loadtest.stack_comparison import equal_work
from tests.simulated_endpoint import SimulatedClient
from tests.virtual_time import run_virtually

WORK = Workload((PromptClass(8),), 5, warm_up=1.0, duration=5.0, cool_down=1.0)
ONE = LoadEndpoint("http://one", "chat", "m")
TWO = LoadEndpoint("http://two", "chat", "m")
CLIENTS = {
    "http://one": SimulatedClient(first=0.1, gap=0.02),
    "http://two": SimulatedClient(first=0.05, gap=0.04, slots=4),
}
LEVELS = tuple(LoadLevel("concurrency", value) for value in (1, 2, 4, 8, 16))


async def no_check(*_: object) -> None: ...


def measure(test: LoadTest, **changes: object) -> tuple[LoadTestResult, list[str]]:
    order = []

    async def run() -> LoadTestResult:
        async def driver(
            endpoint: LoadEndpoint, level: LoadLevel, work: Workload, numbers: object
        ) -> LevelRun:
            order.append(endpoint.url)
            client = replace(CLIENTS[endpoint.url], **changes)
            return await run_level(client, level, work, numbers)  # type: ignore[arg-type]

        return await run_load_test(test, asyncio.Event(), driver=driver, check=no_check)

    return run_virtually(run()), order


def test_rounds_alternate_and_ratios_need_equal_work() -> None:
    result, order = measure(LoadTest((ONE, TWO), WORK, LEVELS[:2], rounds=2))
    assert order == ["http://one", "http://two", "http://two", "http://one"] * 2
    assert result.stacks is not None
    work = result.stacks.work
    assert work.proven
    assert work.pairs > 100
    assert work.output_tokens == (5 * work.pairs, 5 * work.pairs)
    ratios = result.stacks.levels[0].ratios
    assert ratios["ttft_p50"] == pytest.approx(0.5)
    assert ratios["itl_p99"] == pytest.approx(2.0)


def test_the_load_at_which_a_stack_overtakes_is_found() -> None:
    """Four slots of a faster prefill: better alone, worse in a crowd."""
    result, _ = measure(LoadTest((ONE, TWO), WORK, LEVELS, rounds=1))
    assert result.stacks is not None
    [overtake] = [each for each in result.stacks.overtakes if each.name == "ttft_p50"]
    assert (overtake.below, overtake.above) == (LEVELS[2], LEVELS[3])
    assert overtake.better == 0


def test_without_token_counts_there_is_no_ratio() -> None:
    result, _ = measure(LoadTest((ONE, TWO), WORK, LEVELS[:1]), counts=False)
    assert result.stacks is not None
    assert result.stacks.work.problem == "a server does not report its output tokens"
    assert result.stacks.levels == ()


def pair(number: int, tokens: int, inputs: int = 8) -> RequestRecord:
    return RequestRecord(
        number, "8", 5, 0.0, outcome="ok", input_tokens=inputs, output_tokens=tokens
    )


def test_equal_sums_of_different_responses_are_no_proof() -> None:
    first, second = [pair(1, 4), pair(2, 6)], [pair(1, 6), pair(2, 4)]
    found = equal_work(first, second)
    assert found.output_tokens == (10, 10)
    assert found.problem == "the output tokens of the same request differ"
    assert equal_work([pair(1, 5, 8)], [pair(1, 5, 9)]).problem == (
        "the input tokens of the same request differ"
    )
    assert equal_work([pair(1, 5)], [pair(2, 5)]).problem == "no request was completed by both"
    assert equal_work(first, first).proven


def test_crossover_of_an_objective_and_saturation() -> None:
    objective = ClientObjective("chat/first", "ttft", 0.9, 0.15)
    result, _ = measure(LoadTest((TWO,), replace(WORK, duration=20.0), LEVELS, (objective,)))
    [crossover] = result.crossovers
    assert (crossover.kept, crossover.above) == (LEVELS[2], LEVELS[3])
    assert crossover.result.verdict == "missed"
    assert result.saturation == LEVELS[2]  # four slots


def test_a_level_without_a_verdict_does_not_hide_the_crossover() -> None:
    objective = ClientObjective("chat/first", "ttft", 0.9, 0.15)
    result, _ = measure(LoadTest((ONE,), WORK, LEVELS[:1], (objective,)))
    [level] = result.sides[0].results
    bounds = {"kept": (0.95, 1.0), "missed": (0.1, 0.5), "inconclusive": (0.5, 1.0)}

    def found(*verdicts: str) -> tuple[LoadLevel | None, LoadLevel | None, str]:
        first = level.objectives[0]
        shares = [first.bounds._replace(lower=bounds[v][0], upper=bounds[v][1]) for v in verdicts]
        [crossover] = crossovers(
            [
                replace(level, level=at, objectives=(replace(first, bounds=each),))
                for at, each in zip(LEVELS, shares, strict=False)
            ]
        )
        return crossover.kept, crossover.above, crossover.result.verdict

    one, two, four, eight, _ = LEVELS
    assert found("inconclusive", "kept", "kept", "missed") == (four, eight, "missed")
    assert found("inconclusive", "inconclusive", "missed") == (None, four, "missed")
    assert found("kept", "missed", "kept") == (one, two, "missed")
    assert found("inconclusive", "kept", "inconclusive") == (two, four, "inconclusive")
    assert found("inconclusive", "kept") == (two, None, "kept")


def test_an_interruption_ends_the_test_with_the_levels_so_far() -> None:
    async def run() -> LoadTestResult:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(10.0, stop.set)

        async def driver(
            endpoint: LoadEndpoint, level: LoadLevel, work: Workload, numbers: object
        ) -> LevelRun:
            client = SimulatedClient()
            return await run_level(client, level, work, stop=stop)

        test = LoadTest((ONE,), WORK, LEVELS)
        return await run_load_test(test, stop, driver=driver, check=no_check)

    result = run_virtually(run())
    assert result.interrupted
    assert [each.level for each in result.sides[0].results] == list(LEVELS[:2])
    assert result.sides[0].results[1].unfinished == 2
