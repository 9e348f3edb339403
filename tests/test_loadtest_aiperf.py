"""aiperf as the load generator: its arguments, its export, its failures."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtest.aiperf import AiperfDriver, AiperfError, aiperf_arguments, run_of_export
from loadtest.level import LevelRun
from loadtest.level_result import level_result
from loadtest.report import LoadReport, notes
from loadtest.session import LoadTest, LoadTestResult, run_load_test
from loadtest.settings import LoadEndpoint, LoadLevel, PromptClass, Workload
from loadtest.stack_comparison import equal_work

WORK = Workload((PromptClass(128),), 4, warm_up=1.0, duration=10.0)
LEVEL = LoadLevel("rate", 2.5)
ENDPOINT = LoadEndpoint("http://127.0.0.1:8000", "chat", "llama")
START = 1_759_813_207_000_000_000


def exported(number: int, **changes: Any) -> dict[str, Any]:
    """Return a record of ``profile_export.jsonl``."""
    start = START + number * 400_000_000
    metadata = {
        "session_num": 0,  # counts from 0 in each phase
        "conversation_id": f"session_{number:06d}",
        "credit_issued_ns": start - 5_000_000,
        "request_start_ns": start,
        "request_end_ns": start + 200_000_000,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    metrics = {
        "time_to_first_token": {"value": 100.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [20.0, 30.0, 40.0], "unit": "ms"},
        "usage_prompt_tokens": {"value": 128, "unit": "tokens"},
        "usage_completion_tokens": {"value": 4, "unit": "tokens"},
    }
    return {"metadata": metadata, "metrics": metrics, "error": None} | changes


def text(*records: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def test_records_become_requests() -> None:
    run = run_of_export(text(exported(0), exported(1)), LEVEL, WORK)
    assert run.end - run.begin == 10.0
    for record in run.records:
        assert record.lag == pytest.approx(0.005, abs=1e-6)
        assert record.ttft == pytest.approx(0.1, abs=1e-6)
        assert record.gaps == pytest.approx([0.02, 0.03, 0.04], abs=1e-6)
        assert record.e2e == pytest.approx(0.2, abs=1e-6)
        assert (record.outcome, record.matched, record.input_tokens) == ("ok", True, 128)
    assert run.records[1].scheduled - run.records[0].scheduled == pytest.approx(0.4, abs=1e-6)
    assert level_result([run], [], 0.95).requests == 2


def test_a_recorded_export_has_the_outcomes_counts_and_times_of_its_requests() -> None:
    """The server repeats six answers; see ``tests/captures/record_aiperf.py``."""
    export = (Path(__file__).parent / "captures/aiperf_profile_export.jsonl").read_text()
    run = run_of_export(export, LEVEL, replace(WORK, timeout=1.0))
    assert len({record.number for record in run.records}) == len(run.records)
    counts = {(one.outcome, one.reason, one.input_tokens, one.matched) for one in run.records}
    assert counts == {
        ("ok", "", 8, True),
        ("ok", "", None, None),  # the server reported no usage
        ("error", "503", None, None),
        ("error", "reset", None, None),
        ("timeout", "client", None, None),
    }
    assert {True, False} == {one.measured for one in run.records}
    assert all(run.begin <= one.scheduled < run.end for one in run.measured)
    assert all(0 < one.lag < 0.5 for one in run.records)
    complete = [one for one in run.records if one.outcome == "ok"]
    assert len(complete) > 10
    for one in complete:
        assert len(one.chunks) == 4
        assert one.ttft == pytest.approx(0.022, abs=0.01)  # the server waits 20 ms for each chunk
        assert one.gaps == pytest.approx([0.02] * 3, abs=0.005)
        assert one.ttft is not None
        assert one.e2e == pytest.approx(one.ttft + sum(one.gaps), abs=0.01)
    late = [one for one in run.records if one.outcome == "timeout"]
    assert [one.ended - one.sent for one in late] == pytest.approx([1.0] * len(late), abs=1e-6)


def test_what_aiperf_lacks_is_a_note_and_null() -> None:
    result = LoadTestResult(LoadTest((ENDPOINT,), WORK, (LEVEL,)), ())
    [note] = notes(LoadReport(result, "1.0", "2025-01-01T00:00:00+00:00", "aiperf"))
    assert note.startswith("aiperf has no --cool-down and no --max-in-flight. lag is from the time")


def test_failed_cancelled_and_warm_up_requests() -> None:
    rejected = exported(0, metrics={}, error={"code": 503, "type": "x", "message": "prompt"})
    lost = exported(1, metrics=None, error={"code": None, "type": "ConnectionError"})
    cancelled = exported(2, metrics={})
    cancelled["metadata"]["was_cancelled"] = True
    warm = exported(3)
    warm["metadata"]["benchmark_phase"] = "warmup"
    run = run_of_export(text(rejected, lost, cancelled, warm), LEVEL, WORK)
    assert [(one.outcome, one.reason) for one in run.records] == [
        ("error", "503"),
        ("error", "ConnectionError"),
        ("timeout", "client"),
        ("ok", ""),
    ]
    assert [one.measured for one in run.records] == [True, True, True, False]


@pytest.mark.parametrize("line", ["{", "{}", '{"metadata": {"session_num": 1}}', "7"])
def test_another_format_is_an_error(line: str) -> None:
    with pytest.raises(AiperfError, match=r"line 2 of aiperf\'s profile_export\.jsonl is not"):
        run_of_export(text(exported(0)) + line, LEVEL, WORK)


def test_arguments_request_matched_work() -> None:
    arguments = aiperf_arguments(ENDPOINT, LEVEL, WORK, "builtin", "/folder")
    assert arguments[0] == "profile"
    values = dict(pairwise(arguments))
    assert values["--request-rate"] == "2.5"
    assert values["--arrival-pattern"] == "poisson"
    assert json.loads(values["--extra-inputs"]) == {"ignore_eos": True, "min_tokens": 4}
    assert (values["--isl"], values["--osl"]) == ("128", "4")
    closed = aiperf_arguments(ENDPOINT, LoadLevel("concurrency", 8), WORK, "builtin", "/folder")
    assert closed[closed.index("--concurrency") + 1] == "8"


def test_prompts_differ_between_levels_and_rounds_but_not_between_stacks() -> None:
    def seed(endpoint: LoadEndpoint, work: Workload, first: int) -> str:
        arguments = aiperf_arguments(endpoint, LEVEL, work, "builtin", "/folder", first)
        return dict(pairwise(arguments))["--random-seed"]

    other = replace(ENDPOINT, url="http://127.0.0.1:8001")
    firsts = [number * 10_000_000 for number in range(100)]
    seeds = [seed(ENDPOINT, WORK, first) for first in firsts]
    assert len({*seeds}) == 100
    assert seeds == [seed(other, WORK, first) for first in firsts]
    assert not {*seeds} & {seed(ENDPOINT, replace(WORK, seed=1), first) for first in firsts}


@pytest.mark.parametrize(
    ("level", "prompts"),
    [
        (LoadLevel("rate", 1), range(31, 40)),  # 11 s, and the variation of Poisson arrivals
        (LoadLevel("concurrency", 4), range(220, 400)),
        (LoadLevel("rate", 1e6), range(10_000, 10_001)),
    ],
    ids=str,
)
def test_a_level_has_enough_prompts(level: LoadLevel, prompts: range) -> None:
    arguments = aiperf_arguments(ENDPOINT, level, WORK, "builtin", "/folder")
    assert int(dict(pairwise(arguments))["--num-dataset-entries"]) in prompts


def test_repeated_prompts_are_a_note(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys
folder = sys.argv[sys.argv.index("--output-artifact-dir") + 1]
text = {text(exported(0), exported(1), exported(0))!r}
pathlib.Path(folder, "profile_export.jsonl").write_text(text)
"""
    result = compare(program(tmp_path, code), LoadTest((ENDPOINT,), WORK, (LEVEL,)))
    _, note = notes(LoadReport(result, "1.0", "2025-01-01T00:00:00+00:00", "aiperf"))
    assert "rate 2.5/s: 1 requests repeat the prompt of an earlier one" in note


def program(folder: Path, code: str) -> str:
    """Write a program that stands for aiperf."""
    path = folder / "aiperf"
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return str(path)


def compare(program: str, test: LoadTest) -> LoadTestResult:
    """Run a load test of which ``program`` is the driver."""

    async def check(*_: object) -> None: ...

    async def run() -> LoadTestResult:
        stop = asyncio.Event()
        driver = AiperfDriver(program, "builtin", stop)
        return await run_load_test(test, stop, driver=driver, check=check)

    return asyncio.run(run())


def drive(program: str, stop_at: float | None = None) -> Any:
    async def run() -> LevelRun:
        stop = asyncio.Event()
        if stop_at is not None:
            asyncio.get_running_loop().call_later(stop_at, stop.set)
        return await AiperfDriver(program, "builtin", stop)(ENDPOINT, LEVEL, WORK, count())

    return asyncio.run(run())


def test_the_driver_runs_the_program_and_reads_its_export(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--output-artifact-dir") + 1], "run")
folder.mkdir()
(folder / "profile_export.jsonl").write_text({text(exported(0))!r})
"""
    assert len(drive(program(tmp_path, code)).records) == 1


def test_equal_work_is_proven_for_every_level_and_round(tmp_path: Path) -> None:
    """Stacks whose token counts differ in the first run only have not done equal work."""
    code = f"""
import pathlib, sys
option = dict(zip(sys.argv, sys.argv[1:]))
first_run = pathlib.Path({str(tmp_path / "ran")!r})
text = {text(exported(0), exported(1))!r}
if option["--url"] == "http://b" and not first_run.exists():
    first_run.touch()
    text = text.replace('"value": 4,', '"value": 9,')
pathlib.Path(option["--output-artifact-dir"], "profile_export.jsonl").write_text(text)
"""
    levels = (LoadLevel("rate", 1), LoadLevel("rate", 2))
    stacks = tuple(LoadEndpoint(f"http://{name}", "chat", "llama") for name in "ab")
    result = compare(program(tmp_path, code), LoadTest(stacks, WORK, levels, rounds=2))
    numbers = [record.number for record in result.sides[0].records]
    assert len({*numbers}) == len(numbers) == 8
    assert numbers == [record.number for record in result.sides[1].records]
    assert result.stacks is not None
    assert result.stacks.work.pairs == 8
    assert result.stacks.work.problem == "the output tokens of the same request differ"


def test_requests_are_paired_by_prompt_whatever_the_warm_up() -> None:
    first, second = (
        run_of_export(text(*map(exported, range(start, 6))), LEVEL, WORK) for start in (1, 3)
    )
    assert equal_work(first.records, second.records).pairs == 3


def test_failures_of_the_program_are_one_error(tmp_path: Path) -> None:
    failing = program(tmp_path, "print('no route')\nraise SystemExit(3)")
    with pytest.raises(AiperfError, match="aiperf failed with exit code 3: no route"):
        drive(failing)
    with pytest.raises(AiperfError, match=r"aiperf wrote no profile_export\.jsonl"):
        drive(program(tmp_path, ""))


def test_an_interruption_ends_the_program(tmp_path: Path) -> None:
    endless = program(tmp_path, "import time\ntime.sleep(3600)")
    assert drive(endless, stop_at=0.0).records == []
