"""Drive a load level with NVIDIA's aiperf, and read its records.

aiperf runs as a separate program.  Its ``profile_export.jsonl`` has one object per request: times
of start and end in nanoseconds since the epoch, the time to first token, the gaps between chunks
(``inter_chunk_latency``) and token counts.  aiperf does not export when a request was due: it is
scheduled when the rate limiter issues it (``credit_issued_ns``).  ``usage_prompt_tokens`` and
``usage_completion_tokens`` are the server's counts, absent if it reports none.

``session_num`` counts from 0 in each phase of each run, so it identifies no prompt.  The prompt is
identified by ``conversation_id``, whose number counts aiperf's prompts in order.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from math import ceil, sqrt
from pathlib import Path
from random import Random
from typing import Any

from loadtest.level import LevelRun
from loadtest.records import RequestRecord, outcome_of_status
from loadtest.settings import LoadEndpoint, LoadLevel, Workload
from promql.http_client import public
from slos.outcomes import Outcome

_EXPORT = "profile_export.jsonl"
_STOP_SECONDS = 10.0
_NANO = 1e-9
_UNITS = {"ms": 1e-3, "sec": 1.0, "s": 1.0, "us": 1e-6, "ns": 1e-9}
_EXCEPTIONS: Mapping[str, tuple[Outcome, str]] = {
    "TimeoutError": ("timeout", "client"),
    "ClientConnectorError": ("error", "unreachable"),
    "ClientPayloadError": ("error", "reset"),
    "ServerDisconnectedError": ("error", "reset"),
}
"""Outcome and reason by the exception of aiperf's HTTP library, aiohttp."""
_LAST_LINES = 3
_SEED_BITS = 31
_REQUESTS_PER_USER_SECOND = 5
"""More than a user of a closed loop sends, if a response takes at least 200 ms."""
_DEVIATIONS = 6
"""Standard deviations of a Poisson count that are not exceeded."""
_MOST_PROMPTS = 10_000
"""Prompts that aiperf makes in about 12 s, at 512 tokens each."""


class AiperfError(Exception):
    """aiperf failed, or its output is not understood; the message has the fix."""


class AiperfDriver:
    """Runs levels with the program ``aiperf`` until ``stop`` is set.

    ``tokenizer`` is what aiperf makes prompts with: a name, a folder, or ``builtin``.
    """

    def __init__(self, program: str, tokenizer: str, stop: asyncio.Event) -> None:
        self._program, self._tokenizer, self._stop = program, tokenizer, stop

    async def __call__(
        self, endpoint: LoadEndpoint, level: LoadLevel, work: Workload, numbers: Iterator[int]
    ) -> LevelRun:
        """Run one level, which has no requests after an interruption; raises AiperfError.

        The next of the ``numbers`` is that of aiperf's first prompt.
        """
        first = next(numbers)
        with tempfile.TemporaryDirectory(prefix="tokenslo-aiperf-") as folder:
            arguments = aiperf_arguments(endpoint, level, work, self._tokenizer, folder, first)
            if not await _run([self._program, *arguments], self._stop):
                return LevelRun(level, 0.0, 0.0)
            text = _exported(folder)
        if text is None:
            raise AiperfError(
                f"aiperf wrote no {_EXPORT} for {public(endpoint.url)} at {level}. Fix: run "
                "aiperf profile by hand to see why; tokenslo is tested with aiperf 0.13."
            )
        return run_of_export(text, level, work, first)


def aiperf_arguments(
    endpoint: LoadEndpoint,
    level: LoadLevel,
    work: Workload,
    tokenizer: str,
    folder: str,
    first: int = 0,
) -> list[str]:
    """Return the arguments of aiperf for a level; none is secret.

    Prompts differ for each ``first``, the number of the first prompt.
    """
    tokens = work.output_tokens
    load = {
        "concurrency": ["--concurrency", f"{level.value:g}"],
        "rate": ["--request-rate", f"{level.value:g}", "--arrival-pattern", "poisson"],
    }[level.kind]
    matched = {"ignore_eos": True, "min_tokens": tokens, **work.extra}
    warm_up = ["--warmup-duration", f"{work.warm_up:g}"] if work.warm_up else []
    return [
        "profile",
        *("--model", endpoint.model, "--url", endpoint.url, "--endpoint-type", endpoint.api),
        *("--streaming", "--tokenizer", tokenizer, "--use-server-token-count"),
        *load,
        *warm_up,
        *("--benchmark-duration", f"{work.duration:g}"),
        *("--benchmark-grace-period", f"{work.timeout:g}"),
        *("--request-timeout-seconds", f"{work.timeout:g}"),
        *("--isl", str(work.prompts[0].words), "--osl", str(tokens)),
        *("--extra-inputs", json.dumps(matched)),
        *("--num-dataset-entries", str(_prompt_count(level, work))),
        *("--dataset-sampling-strategy", "sequential"),
        *("--random-seed", str(Random(f"{work.seed}/{first}").getrandbits(_SEED_BITS))),
        *("--ui", "none", "--output-artifact-dir", folder),
    ]


def _prompt_count(level: LoadLevel, work: Workload) -> int:
    """Return how many prompts aiperf makes before a level; it repeats them if they are too few."""
    expected = level.value * (work.warm_up + work.duration)
    if level.kind == "concurrency":
        expected *= _REQUESTS_PER_USER_SECOND
    return min(_MOST_PROMPTS, ceil(expected + _DEVIATIONS * sqrt(expected)) + 1)


def _exported(folder: str) -> str | None:
    found = next(Path(folder).rglob(_EXPORT), None)
    return found.read_text(encoding="utf-8") if found else None


async def _run(command: list[str], stop: asyncio.Event) -> bool:
    """Run aiperf without a terminal; end it and return False if ``stop`` is set."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is handled here
    )
    running = asyncio.create_task(process.communicate())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not running.done():
            await _end(process)
            await running
    if stop.is_set():
        return False
    if process.returncode:
        output, _ = running.result()
        lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        raise AiperfError(
            f"aiperf failed with exit code {process.returncode}: {' '.join(lines[-_LAST_LINES:])}"
        )
    return True


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    if process.returncode is None:
        process.kill()


def run_of_export(text: str, level: LoadLevel, work: Workload, first: int = 0) -> LevelRun:
    """Return the requests of aiperf's ``profile_export.jsonl``; raises AiperfError.

    ``first`` is the number of aiperf's first prompt.  Requests with the same prompt have the same
    number.
    """
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if line.strip():
                records.append(_record(json.loads(line), work, first))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise AiperfError(
                f"line {number} of aiperf's {_EXPORT} is not understood ({error}). Fix: use aiperf "
                "0.13, with which tokenslo is tested."
            ) from None
    measured = [record.scheduled for record in records if record.measured]
    begin = min(measured, default=0.0)
    return LevelRun(level, begin, begin + work.duration, records)


def _record(found: Mapping[str, Any], work: Workload, first: int) -> RequestRecord:
    metadata, metrics = found["metadata"], found.get("metrics") or {}
    start, end = (metadata[f"request_{each}_ns"] * _NANO for each in ("start", "end"))
    record = RequestRecord(
        first + int(metadata["conversation_id"].rpartition("_")[2]),
        work.prompts[0].name,
        work.output_tokens,
        metadata["credit_issued_ns"] * _NANO,
        start,
        ended=end,
        outcome="ok",
        measured=metadata["benchmark_phase"] == "profiling",
    )
    to_first = _seconds(metrics.get("time_to_first_token"))
    if to_first:
        gaps = _seconds(metrics.get("inter_chunk_latency"))
        record.chunks = array("d", accumulate([start + to_first[0], *gaps]))
    record.input_tokens = _tokens(metrics.get("usage_prompt_tokens"))
    record.output_tokens = _tokens(metrics.get("usage_completion_tokens"))
    if metadata.get("was_cancelled"):
        record.outcome, record.reason = "timeout", "client"
    elif error := found.get("error"):
        record.outcome, record.reason = _outcome(error.get("code"), str(error.get("type") or ""))
    if record.outcome == "timeout":
        record.ended = start + work.timeout  # aiperf exports the last chunk instead
    return record


def _outcome(code: object, kind: str) -> tuple[Outcome, str]:
    """Return outcome and reason of a failed request, as of the driver tokenslo."""
    if isinstance(code, int) and 400 <= code < 600:
        return outcome_of_status(code), str(code)
    return _EXCEPTIONS.get(kind, ("error", kind or str(code or "")))


def _seconds(metric: Mapping[str, Any] | None) -> list[float]:
    if not metric:
        return []
    value, unit = metric["value"], _UNITS[metric["unit"]]
    return [each * unit for each in (value if isinstance(value, list) else [value])]


def _tokens(metric: Mapping[str, Any] | None) -> int | None:
    return int(metric["value"]) if metric else None
