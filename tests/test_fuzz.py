"""Fuzz targets on their corpus and on a few mutations, and the fuzzer itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.fuzz.__main__ import FuzzRun, fuzz, main
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, FuzzTarget


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_parser_accepts_or_refuses_mutations_of_its_corpus(target: FuzzTarget) -> None:
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)
    examples = min(20, target.examples // 5)
    settings(max_examples=examples)(given(mutated(seeds))(target.run))()


def test_the_fuzzer_finds_a_defect_and_prints_the_smallest_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(data: bytes) -> None:
        assert b"data" not in data, "the defect"

    target = FuzzTarget("sse", broken)
    assert main(["--seconds", "0", "--seed", "7"], [FuzzTarget("json", bytes), target]) == 1
    printed = capsys.readouterr().out
    assert "sse               failed: AssertionError: the defect" in printed
    assert "repeat with: python -m tests.fuzz sse --seed 7" in printed


def test_the_fuzzer_runs_for_its_time_and_counts_executions() -> None:
    runs: list[bytes] = []
    times = iter([0.0, 1.0, 2.0, 3.0])
    target = FuzzTarget("json", runs.append, examples=5)
    run: FuzzRun = fuzz(target, 1, 2.5, lambda: next(times))
    assert run.executions == len(runs)
    assert run.failed is None
    assert len(runs) > 3 * 5  # three rounds before the clock reads 3
    again: list[bytes] = []
    fuzz(FuzzTarget("json", again.append, examples=5), 2, 0.0, lambda: 0.0)
    assert again != runs[: len(again)]
