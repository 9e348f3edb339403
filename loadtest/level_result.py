"""Results of one load level: latencies, throughput, objectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.level import LevelRun
from loadtest.objectives import ClientObjective, ObjectiveResult, Verdict, evaluate, verdict
from loadtest.quantiles import nearest_rank
from loadtest.records import RequestRecord
from loadtest.settings import LoadLevel

_LATE_CLIENT = 0.01
"""Seconds of the event loop's lag (p99) that distort latencies of the order of a token gap."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Nearest-rank quantiles and mean in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class MatchedWork:
    """Complete responses by the server's count of output tokens: of the planned length, other.

    ``uncounted`` responses have no such count; ``chunks`` is their mean number of chunks with text.
    """

    planned: int
    matched: int
    other: int
    uncounted: int
    chunks: float | None


@dataclass(frozen=True, slots=True)
class PromptClassResult:
    """The requests of one prompt class: planned words, mean of the server's token counts, TTFT."""

    prompt: str
    requests: int
    input_tokens: float | None
    ttft: LatencySummary | None


@dataclass(frozen=True, slots=True)
class LevelResult:
    """Results of the measured requests of a level; seconds, and requests or tokens per second.

    ``latencies`` are by name; those that begin with ``scheduled_`` start at the scheduled start,
    the others at the send.  ``offered`` and ``completed`` are rates of requests.
    ``output_tokens`` is the rate at which tokens arrived in the measured window;
    ``counted`` is whether the server counted them.  ``good`` is the rate of requests that are good
    for every objective with one verdict per request.
    """

    level: LoadLevel
    seconds: float
    requests: int
    unfinished: int
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    offered: float
    completed: float
    output_tokens: float
    counted: bool
    good: float | None
    latencies: Mapping[str, LatencySummary | None]
    lag: LatencySummary | None
    client_lag: LatencySummary | None
    work: MatchedWork
    prompts: tuple[PromptClassResult, ...]
    objectives: tuple[ObjectiveResult, ...]

    @property
    def verdict(self) -> Verdict | None:
        """``kept`` if every objective is, ``missed`` if one is; None without objectives."""
        verdicts = {each.verdict for each in self.objectives}
        if not verdicts:
            return None
        return next(each for each in ("missed", "inconclusive", "kept") if each in verdicts)

    @property
    def acceptable(self) -> bool:
        """Whether every objective is kept, or good in requests that are too few for a proof."""
        return bool(self.requests) and all(each.acceptable for each in self.objectives)

    @property
    def late_client(self) -> bool:
        """Whether the load generator itself was too busy to measure token gaps."""
        return self.client_lag is not None and self.client_lag.p99 > _LATE_CLIENT


def level_result(
    runs: Sequence[LevelRun], objectives: Iterable[ClientObjective], confidence: float
) -> LevelResult:
    """Return the results of one level from its runs."""
    records = [record for run in runs for record in run.measured]
    seconds = sum(run.end - run.begin for run in runs)
    kinds = tuple(objectives)
    ok = [record for record in records if record.outcome == "ok"]
    complete = [record for record in ok if record.chunks]
    return LevelResult(
        level=runs[0].level,
        seconds=seconds,
        requests=len(records),
        unfinished=sum(run.unfinished for run in runs),
        outcomes=Counter(record.outcome for record in records),
        reasons=Counter(record.reason for record in records if record.outcome != "ok"),
        offered=_rate(len(records), seconds),
        completed=_rate(len(ok), seconds),
        output_tokens=_rate(sum(map(_tokens_in_window, runs)), seconds),
        counted=bool(complete) and all(one.output_tokens is not None for one in complete),
        good=_good_rate(kinds, records, seconds),
        latencies={
            name: summarize(values(records, name))
            for name in ("ttft", "scheduled_ttft", "itl", "tpot", "max_gap", "e2e", "scheduled_e2e")
        },
        lag=summarize([record.lag for record in records]),
        client_lag=summarize([late for run in runs for late in run.client_lag]),
        work=_matched(complete),
        prompts=tuple(_by_prompt(records)),
        objectives=tuple(evaluate(each, records, confidence) for each in kinds),
    )


def values(records: Sequence[RequestRecord], name: str) -> list[float]:
    """Return the observations of a latency in seconds; the definitions are the sidecar's."""
    ok = [record for record in records if record.outcome == "ok"]
    match name:
        case "ttft":
            return [record.ttft for record in records if record.ttft is not None]
        case "scheduled_ttft":
            return [record.ttft + record.lag for record in records if record.ttft is not None]
        case "itl":
            return [gap for record in records for gap in record.gaps]
        case "tpot":
            several = [record.tpot for record in ok if len(record.chunks) > 1]
            return [seconds for seconds in several if seconds is not None]
        case "max_gap":
            return [max(record.gaps) for record in records if len(record.chunks) > 1]
        case "e2e":
            return [record.e2e for record in ok]
        case "scheduled_e2e":
            return [record.e2e + record.lag for record in ok]
    raise ValueError(name)


def summarize(seconds: Sequence[float]) -> LatencySummary | None:
    """Return quantiles and mean; None without observations."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    ranks = (nearest_rank(q, ordered) for q in (0.5, 0.9, 0.99, 1.0))
    return LatencySummary(len(ordered), sum(ordered) / len(ordered), *ranks)


def _rate(number: float, seconds: float) -> float:
    return number / seconds if seconds > 0 else 0.0


def _tokens_in_window(run: LevelRun) -> float:
    """Return how many tokens arrived in the measured window, of all requests."""
    return sum(
        record.tokens * sum(run.begin <= at < run.end for at in record.chunks) / len(record.chunks)
        for record in run.records
        if record.chunks
    )


def _good_rate(
    objectives: Sequence[ClientObjective], records: Sequence[RequestRecord], seconds: float
) -> float | None:
    by_request = [each for each in objectives if each.indicator != "itl"]
    if not by_request:
        return None
    good = sum(
        all(verdict(each, record) not in ("bad", "unknown") for each in by_request)
        and record.outcome == "ok"
        for record in records
    )
    return _rate(good, seconds)


def _matched(complete: Sequence[RequestRecord]) -> MatchedWork:
    verdicts = Counter(record.matched for record in complete)
    chunks = [len(record.chunks) for record in complete if record.matched is None]
    return MatchedWork(
        planned=complete[0].planned_tokens if complete else 0,
        matched=verdicts[True],
        other=verdicts[False],
        uncounted=verdicts[None],
        chunks=sum(chunks) / len(chunks) if chunks else None,
    )


def _by_prompt(records: Sequence[RequestRecord]) -> Iterator[PromptClassResult]:
    for prompt in sorted({record.prompt for record in records}, key=int):
        own = [record for record in records if record.prompt == prompt]
        counts = [record.input_tokens for record in own if record.input_tokens is not None]
        mean = sum(counts) / len(counts) if counts else None
        yield PromptClassResult(prompt, len(own), mean, summarize(values(own, "ttft")))
