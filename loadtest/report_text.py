"""The report of a load test as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtest.level_result import LatencySummary, LevelResult
from loadtest.objectives import ObjectiveResult
from loadtest.report import LoadReport, notes
from loadtest.session import EndpointRuns, LoadTestResult
from loadtest.sidecar_comparison import SidecarComparison
from loadtest.stack_comparison import StackComparison
from promql.http_client import public
from slos.outcomes import FAILURES
from slos.text_table import text_table

_HEADINGS = (
    "load", "requests", "failed", "TTFT p50", "p99", "ITL p50", "p99", "tokens/s", "goodput/s",
    "lag p99", "objectives",
)  # fmt: skip


def as_text(report: LoadReport) -> str:
    """Return the report as lines."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: LoadReport) -> Iterator[str]:
    result = report.result
    for side in result.sides:
        yield from _side(side)
        yield ""
    yield from _objectives(result)
    yield from _found(result)
    if result.stacks:
        yield from _stacks(result.stacks, result.sides)
    if result.sidecar:
        yield from _sidecar(result.sidecar)
    elif result.sidecar_error:
        yield f"Sidecar: not compared: {result.sidecar_error}."
    for each in report.unmeasured:
        yield f"Not measured: {each.name}: {each.reason}."
    for note in notes(report):
        yield f"Note: {note}"
    work = result.test.work
    yield f"Seed: {work.seed}; --seed {work.seed} repeats prompts, arrivals and cancellations."
    yield (
        f"TTFT from the scheduled start; ITL of all gaps; goodput: requests that break no "
        f"objective; {work.output_tokens} output tokens. Definitions are in the JSON and HTML "
        "reports."
    )


def _side(side: EndpointRuns) -> Iterator[str]:
    yield f"{public(side.endpoint.url)} ({side.endpoint.api}, model {side.endpoint.model})"
    rows = [_HEADINGS, *(_row(result) for result in side.results)]
    yield from text_table(rows, right=range(1, len(_HEADINGS) - 1))


def _row(result: LevelResult) -> tuple[str, ...]:
    ttft, itl = result.latencies["scheduled_ttft"], result.latencies["itl"]
    failed = sum(result.outcomes.get(each, 0) for each in FAILURES)
    return (
        str(result.level),
        str(result.requests),
        str(failed + result.outcomes.get("invalid", 0)),
        *_quantiles(ttft),
        *_quantiles(itl),
        f"{result.output_tokens:.0f}",
        "-" if result.good is None else f"{result.good:.2f}",
        milliseconds(result.lag.p99) if result.lag else "-",
        result.verdict or "-",
    )


def _quantiles(found: LatencySummary | None) -> tuple[str, str]:
    if found is None:
        return "-", "-"
    return milliseconds(found.p50), milliseconds(found.p99)


def milliseconds(seconds: float) -> str:
    """Write a duration in milliseconds, to 0.1 ms below 100 ms."""
    value = 1000 * seconds
    return f"{value:.1f}ms" if abs(value) < 99.95 else f"{value:.0f}ms"


def _objectives(result: LoadTestResult) -> Iterator[str]:
    for each in result.crossovers:
        up_to = f"kept up to {each.kept}, " if each.kept else ""
        if each.above is None:
            yield f"{each.objective}: {up_to}the highest load measured."
        elif each.result.verdict == "missed":
            yield f"{each.objective}: {up_to}missed at {each.above}."
        else:
            yield f"{each.objective}: {up_to}not proven at {each.above}{_needed(each.result)}."
    if result.saturation:
        yield f"Saturation: output tokens/s grow by less than 5 % above {result.saturation}."


def _needed(found: ObjectiveResult) -> str:
    """Return how many requests could prove an objective, if it had fewer."""
    if found.count >= found.least:
        return ""
    return (
        f" by {found.count} requests: {100 * found.objective.target:g} % takes {found.least} "
        "without a bad one"
    )


def _found(result: LoadTestResult) -> Iterator[str]:
    found, confidence = result.found, result.test.confidence
    if found is None:
        return
    if found.kept is None:
        yield f"No rate keeps every objective: {found.missed:.4g}/s does not."
        return
    above = f"{found.missed:.4g}/s does not" if found.missed else "the highest one allowed"
    yield (
        f"Highest rate that keeps every objective: {found.kept:.4g}/s ({above}; each level with "
        f"{100 * confidence:g} % confidence, Wilson lower bound)."
    )
    [level] = [each for each in result.sides[0].results if each.level.value == found.kept]
    for each in level.objectives:
        if each.verdict != "kept":
            yield f"{each.objective.name}: not contradicted there, but not proven{_needed(each)}."


def _sidecar(found: SidecarComparison) -> Iterator[str]:
    verdict = "agrees with" if found.agrees else "disagrees with"
    yield (
        f"Sidecar: {verdict} this client: {found.client_requests} requests here, "
        f"{found.sidecar_requests:g} at the sidecar."
    )
    for each in found.signals:
        mark = "" if each.agrees else "  DISAGREES"
        yield (
            f"  {each.signal}: mean {milliseconds(each.client_mean)} here, "
            f"{milliseconds(each.sidecar_mean)} there ({each.difference * 1000:+.1f} ms, tolerance "
            f"{milliseconds(each.tolerance)}), {each.client_count} and {each.sidecar_count:g} "
            f"observations{mark}"
        )
        for share in each.shares:
            mark = "" if share.agrees else "  DISAGREES"
            yield (
                f"    within {milliseconds(share.threshold)}: {100 * share.client:.2f} % here, "
                f"{100 * share.sidecar:.2f} % there{mark}"
            )
        for quantile in each.quantiles:
            if not quantile.agrees:
                low, high = map(milliseconds, quantile.bucket)
                yield (
                    f"    p{100 * quantile.q:g}: {milliseconds(quantile.client)} here, {low} to "
                    f"{high} there  DISAGREES"
                )
    for goodput in found.goodput:
        mark = "" if goodput.agrees else "  DISAGREES"
        yield (
            f"  {goodput.objective}: {goodput.client[0]} good and {goodput.client[1]} bad here, "
            f"{goodput.sidecar[0]:g} and {goodput.sidecar[1]:g} there{mark}"
        )
    for reason in found.missing:
        yield f"  not compared: {reason}"


def _stacks(found: StackComparison, sides: Sequence[EndpointRuns]) -> Iterator[str]:
    work = found.work
    if not work.proven:
        yield f"No ratio of the two stacks: equal work is not proven: {work.problem}."
        return
    yield (
        f"Equal work: {work.pairs} pairs of responses with {work.input_tokens[0]} input and "
        f"{work.output_tokens[0]} output tokens on each side."
    )
    for level in found.levels:
        ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in level.ratios.items())
        yield f"Second / first at {level.level}: {ratios}."
    for each in found.overtakes:
        better = public(sides[each.better].endpoint.url)
        yield f"Crossover of {each.name} between {each.below} and {each.above}: {better} is better."
