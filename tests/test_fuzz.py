"""Fuzz targets on their corpus and on a few mutations, and the fuzzer itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings

from tests.fuzz.__main__ import FuzzRun, fuzz, main
from tests.fuzz.mutations import mutated
from tests.fuzz.target import FuzzTarget
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("alerts", "dashboards", "diagnosis", "documents", "exporter", "promql", "runbooks"),
    *("slos", "tokenslo", "top"),
)
_PARSER = re.compile(
    r'\Ar?"""(?:Parse|Decode|Decompress|Observe|Reassemble|Scan|Split|Tail|Validate)\b'
    r"|json\.loads\(|JSONDecoder\(|yaml\.parse\(|\.unpack(?:_from)?\b|\.from_bytes\("
    r"|decompressobj\(|\bDecoder\(|\.FromString\(|getincrementaldecoder\("
)
"""The docstring of a module that parses, or a call of a decoder."""
TRUSTED = {
    "dashboards/overlay.py": "the output of Jsonnet, whose evaluation slo-jsonnet has",
    "exporter/sources/probe.py": "a response is valid or not; nothing of it is kept",
    "exporter/sources/traces/traces_source.py": "inflates bodies for the targets otlp-*",
    "exporter/taps/capture/packet_ring.py": "structures of the kernel; packets has the content",
    "exporter/taps/loop_lag.py": "a structure of the kernel",
    "exporter/taps/process/child_process.py": "messages of the sidecar's own processes",
    "exporter/taps/process/messages.py": "messages of the sidecar's own processes",
    "exporter/taps/proxy/transports.py": "a structure of the kernel",
    "slos/catalogues/stored.py": "files of the distribution",
    "tokenslo/load_options.py": "a JSON object of the operator, which is sent on as it is",
}
"""Modules that parse and have no fuzz target, with the reason."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_parser_accepts_or_refuses_mutations_of_its_corpus(target: FuzzTarget) -> None:
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)
    examples = min(20, target.examples // 5)
    settings(max_examples=examples)(given(mutated(seeds))(target.run))()


def parsers() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if _PARSER.search(path.read_text(encoding="utf-8")):
                yield path.relative_to(ROOT).as_posix()


def executed() -> set[str]:
    """Return the files with functions that the targets call on a few of their seeds."""
    found: set[str] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    for target in TARGETS:
        seeds = target.seeds()
        for seed in {*seeds[:1], *seeds[-3:]}:
            sys.setprofile(record)
            try:
                target.run(seed)
            finally:
                sys.setprofile(None)
    return {name.removeprefix(f"{ROOT}/") for name in found}


def test_every_parser_has_a_fuzz_target_or_a_reason() -> None:
    found = {*parsers()}
    assert len(found) > 50
    assert found - executed() - TRUSTED.keys() == set()
    assert found >= TRUSTED.keys()


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
