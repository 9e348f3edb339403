"""The report of a load test as data, which every format renders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.definitions import DEFINITIONS
from loadtest.level import LevelRun
from loadtest.level_result import LevelResult
from loadtest.objectives import ObjectiveResult, UnmeasuredObjective
from loadtest.session import EndpointRuns, LoadTestResult
from loadtest.settings import LoadLevel, Workload
from promql.http_client import public


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A result, and what a reader needs to repeat it.

    ``started`` is RFC 3339; ``notes`` are sentences about the choice of settings.
    """

    result: LoadTestResult
    version: str
    started: str
    driver: str = "tokenslo"
    unmeasured: tuple[UnmeasuredObjective, ...] = ()
    notes: tuple[str, ...] = field(default=())


_AIPERF_NOTE = (
    "aiperf has no --cool-down and no --max-in-flight. lag is from the time at which aiperf issued "
    "a request, which can be later than its schedule; client_lag is unknown."
)


def as_object(report: LoadReport) -> dict[str, Any]:
    """Return the report as JSON values; seconds, and rates per second."""
    result, test = report.result, report.result.test
    return {
        "tokenslo": report.version,
        "started": report.started,
        "driver": report.driver,
        "interrupted": result.interrupted,
        "confidence": test.confidence,
        "workload": _workload(test.work, aiperf=report.driver == "aiperf"),
        "definitions": dict(DEFINITIONS),
        "notes": list(notes(report)),
        "endpoints": [_endpoint(side) for side in result.sides],
        "not_measured": [asdict(each) for each in report.unmeasured],
        "crossovers": [
            {
                "objective": each.objective,
                "kept": _level(each.kept),
                "next": _level(each.above),
                "next_verdict": each.result.verdict if each.above else None,
            }
            for each in result.crossovers
        ],
        "saturation": _level(result.saturation),
        "highest_rate": asdict(result.found) if result.found else None,
        "sidecar": _sidecar(result),
        "stacks": _stacks(result),
    }


def notes(report: LoadReport) -> Iterator[str]:
    """Yield what a reader must consider with the numbers."""
    yield from report.notes
    if report.driver == "aiperf":
        yield _AIPERF_NOTE
    result = report.result
    if result.interrupted:
        yield "The test was interrupted: this is what was measured until then."
    for side in result.sides:
        late = [
            each.client_lag.p99 for each in side.results if each.late_client and each.client_lag
        ]
        if late:
            yield (
                f"{public(side.endpoint.url)}: at {len(late)} of {len(side.results)} loads the "
                f"load generator was too busy (its event loop ran up to {1000 * max(late):.0f} ms "
                "late, p99): gaps between tokens are partly its own. Use a machine with more CPU."
            )
        for runs, level in zip(side.runs, side.results, strict=True):
            where = f"{public(side.endpoint.url)}, {level.level}"
            work = level.work
            if work.other:
                yield (
                    f"{where}: {work.other} of {work.matched + work.other} responses do not have "
                    f"the planned {work.planned} output tokens: the server ignored ignore_eos or "
                    "min_tokens, so the work is not matched."
                )
            if work.uncounted:
                yield (
                    f"{where}: the server reports no token counts; a response had "
                    f"{work.chunks:.1f} chunks with text on average, {work.planned} tokens were "
                    "planned. Whether the work is matched is unknown."
                )
            if repeated := sum(len(run.records) - len({*_numbers(run)}) for run in runs):
                yield (
                    f"{where}: {repeated} requests repeat the prompt of an earlier one: a "
                    "prefix cache makes them faster. Use the driver tokenslo, or a shorter "
                    "--duration."
                )
            for each in level.objectives:
                if each.unknown:
                    yield (
                        f"{where}: {each.unknown} requests have no verdict for "
                        f"{each.objective.name} and are in no share."
                    )


def _numbers(run: LevelRun) -> Iterator[int]:
    return (record.number for record in run.records)


def _workload(work: Workload, *, aiperf: bool) -> dict[str, Any]:
    total = sum(each.weight for each in work.prompts)
    return {
        "prompts": [{"words": each.words, "share": each.weight / total} for each in work.prompts],
        "output_tokens": work.output_tokens,
        "cancelled_share": work.cancelled,
        "extra_body": sorted(work.extra),
        "warm_up_seconds": work.warm_up,
        "duration_seconds": work.duration,
        "cool_down_seconds": None if aiperf else work.cool_down,
        "timeout_seconds": work.timeout,
        "max_in_flight": None if aiperf else work.max_in_flight,
        "seed": work.seed,
    }


def _endpoint(side: EndpointRuns) -> dict[str, Any]:
    endpoint = side.endpoint
    return {
        "url": public(endpoint.url),
        "api": endpoint.api,
        "model": endpoint.model,
        "levels": [level_object(result) for result in side.results],
    }


def level_object(result: LevelResult) -> dict[str, Any]:
    """Return the results of a level as JSON values."""

    def summary(found: Any) -> Any:
        return asdict(found) if found else None

    return {
        **(_level(result.level) or {}),
        "seconds": result.seconds,
        "requests": result.requests,
        "unfinished": result.unfinished,
        "outcomes": dict(result.outcomes),
        "failure_reasons": dict(result.reasons),
        "offered_per_second": result.offered,
        "completed_per_second": result.completed,
        "output_tokens_per_second": result.output_tokens,
        "tokens_counted_by": "server" if result.counted else "chunks",
        "goodput_per_second": result.good,
        "latencies": {name: summary(found) for name, found in result.latencies.items()},
        "lag": summary(result.lag),
        "client_lag": summary(result.client_lag),
        "matched_work": asdict(result.work),
        "prompts": [
            {
                "words": int(each.prompt),
                "requests": each.requests,
                "mean_input_tokens": each.input_tokens,
                "ttft": summary(each.ttft),
            }
            for each in result.prompts
        ],
        "objectives": [_objective(each) for each in result.objectives],
        "verdict": result.verdict,
    }


def _objective(found: ObjectiveResult) -> dict[str, Any]:
    objective = found.objective
    return {
        "name": objective.name,
        "indicator": objective.indicator,
        "limit": objective.text,
        "target": objective.target,
        "good": found.good,
        "bad": found.bad,
        "unknown": found.unknown,
        "share": found.share,
        "lower_bound": found.bounds.lower,
        "upper_bound": found.bounds.upper,
        "independent_events": found.count,
        "least_events": found.least,
        "verdict": found.verdict,
    }


def _level(level: LoadLevel | None) -> dict[str, Any] | None:
    return {"kind": level.kind, "value": level.value} if level else None


def _sidecar(result: LoadTestResult) -> dict[str, Any] | None:
    found = result.sidecar
    if found is None:
        return {"error": result.sidecar_error} if result.sidecar_error else None
    return {
        "url": public(found.url),
        "agrees": found.agrees,
        "client_requests": found.client_requests,
        "sidecar_requests": found.sidecar_requests,
        "signals": [
            {
                **{name: value for name, value in asdict(each).items() if name != "quantiles"},
                "quantiles": [_quantile(one) for one in each.quantiles],
                "difference": each.difference,
                "agrees": each.agrees,
            }
            for each in found.signals
        ],
        "goodput": [
            {
                "objective": each.objective,
                "client": {"good": each.client[0], "bad": each.client[1]},
                "sidecar": {"good": each.sidecar[0], "bad": each.sidecar[1]},
                "agrees": each.agrees,
            }
            for each in found.goodput
        ],
        "not_compared": list(found.missing),
    }


def _quantile(found: Any) -> dict[str, Any]:
    low, high = found.bucket
    finite = None if high == float("inf") else high
    return {
        "q": found.q,
        "client": found.client,
        "sidecar_bucket": [low, finite],
        "agrees": found.agrees,
    }


def _stacks(result: LoadTestResult) -> Mapping[str, Any] | None:
    found = result.stacks
    if found is None:
        return None
    return {
        "equal_work": found.work.proven,
        "problem": found.work.problem,
        "pairs": found.work.pairs,
        "input_tokens": list(found.work.input_tokens),
        "output_tokens": list(found.work.output_tokens),
        "ratios": [
            {**(_level(each.level) or {}), "second_to_first": dict(each.ratios)}
            for each in found.levels
        ],
        "overtakes": [
            {
                "measurement": each.name,
                "below": _level(each.below),
                "above": _level(each.above),
                "better_above": each.better,
            }
            for each in found.overtakes
        ],
    }
