"""Limits of the work of one request and of one iteration of the engine."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from admission.capacity import MeasuredCapacity
from admission.limit import MAX_COUNT, AdmissionLimit, AdmissionSettings, Computed
from admission.thresholds import ServiceThresholds
from promql.expr import decimal_text
from slos.durations import format_duration
from slos.errors import InvalidFile, Problem
from slos.model import Service

BURST_DEVIATIONS = 3
"""Standard deviations of Poisson arrivals that a limit of running requests allows."""
_UNMEASURED = "Measure a server that reports token counts."


def longest_input(
    service: Service,
    capacity: MeasuredCapacity,
    thresholds: ServiceThresholds,
    settings: AdmissionSettings,
) -> Computed[int]:
    """Return the longest prompt: given, or what prefill completes within the TTFT threshold."""
    given, first = settings.input_tokens, thresholds.loose_ttft
    possible, arithmetic = _prefilled(capacity, first.seconds)
    if given is None:
        if not possible:
            message = "has no prefill rate, so the longest prompt is unknown"
            fix = "give --input-tokens N, or measure a server that reports token counts"
            raise InvalidFile([Problem(capacity.file, 0, "", message, fix)])
        return Computed(possible, (_row("input tokens", possible, arithmetic, first),))
    _refuse_below_mean(service, "--input-tokens", given, capacity.input_tokens, "prompts")
    notes: tuple[str, ...] = ()
    if possible and given > possible:
        notes = (
            f"Prompts above {possible} tokens miss {first} even without a queue, by the estimated "
            "prefill rate.",
        )
    because = f"--input-tokens; {arithmetic}" if arithmetic else "--input-tokens"
    return Computed(given, (_row("input tokens", given, because, first),), notes)


def longest_output(
    service: Service,
    capacity: MeasuredCapacity,
    thresholds: ServiceThresholds,
    settings: AdmissionSettings,
) -> Computed[int]:
    """Return the longest answer: given, or what an e2e threshold leaves time for."""
    given, whole = settings.output_tokens, thresholds.e2e
    first, pace = thresholds.loose_ttft.seconds, thresholds.loose_pace
    possible = max(int((whole.seconds - first) / pace.seconds), 0) if whole else 0
    if given is None:
        if not whole or not possible:
            why = f"leaves no time in {whole}" if whole else "has no e2e threshold"
            message = f"{service.service} {why}, so the longest answer is unknown"
            fix = "give --output-tokens N, the most that clients may request"
            raise InvalidFile([Problem(service.file, service.line, "objectives", message, fix)])
        arithmetic = (
            f"({format_duration(whole.seconds)} - {format_duration(first)}) / "
            f"{format_duration(pace.seconds)}, rounded down"
        )
        return Computed(possible, (_row("output tokens", possible, arithmetic, whole),))
    _refuse_below_mean(service, "--output-tokens", given, capacity.output_tokens, "answers")
    notes: tuple[str, ...] = ()
    if whole and given > possible:
        notes = (
            f"Answers above {possible} tokens can miss {whole} although their tokens keep {pace}.",
        )
    return Computed(given, (_row("output tokens", given, "--output-tokens", pace),), notes)


def _refuse_below_mean(
    service: Service, option: str, given: int, mean: Decimal | None, measured: str
) -> None:
    """Refuse a length that the mean of the measured requests exceeds."""
    if mean is not None and given < int(mean):
        message = f"{given} is below the mean of the measured {measured}, {decimal_text(mean)}"
        fix = f"raise it, or measure with the {measured} of your clients"
        raise InvalidFile([Problem(service.file, service.line, option, message, fix)])


def running_sequences(capacity: MeasuredCapacity) -> Computed[int]:
    """Return how many sequences may run: the mean at the capacity, and its bursts."""
    mean = capacity.in_flight
    if capacity.closed_loop:
        bound, arithmetic = mean, f"measured at {capacity.load}"
    else:
        bound = mean + BURST_DEVIATIONS * mean.sqrt()
        text = decimal_text(mean)
        arithmetic = f"{text} in flight + {BURST_DEVIATIONS} x sqrt({text}) = {bound:.1f}"
    running = min(int(bound.to_integral_value(ROUND_CEILING)), MAX_COUNT)
    return Computed(running, (_row("running sequences", running, arithmetic, "the capacity"),))


def tokens_per_iteration(
    capacity: MeasuredCapacity, thresholds: ServiceThresholds, running: int
) -> Computed[int | None]:
    """Return how many tokens an iteration may have so that it is no longer than the pace.

    It is None without a measured prefill rate.
    """
    pace = thresholds.pace
    tokens, arithmetic = _prefilled(capacity, pace.seconds)
    if not arithmetic:
        note = f"max_num_tokens is unknown: the prefill rate was not measured. {_UNMEASURED}"
        return Computed(None, (), (note,))
    notes: tuple[str, ...] = ()
    if tokens < running:
        arithmetic += f", at least one for each of {running} sequences"
        notes = (
            f"{running} sequences and a prompt do not fit in an iteration of {pace}: new prompts "
            "delay the tokens of the others.",
        )
    found = min(max(tokens, running), MAX_COUNT)
    return Computed(found, (_row("tokens per iteration", found, arithmetic, pace),), notes)


def _prefilled(capacity: MeasuredCapacity, seconds: Decimal) -> tuple[int, str]:
    """Return the tokens that prefill processes in a time, with the arithmetic; 0 if unknown."""
    if capacity.prefill_rate is None:
        return 0, ""
    tokens = int(capacity.prefill_rate * seconds)
    rate = decimal_text(capacity.prefill_rate)
    return tokens, f"prefill {rate}/s (estimate) x {format_duration(seconds)} = {tokens}"


def _row(name: str, value: int, arithmetic: str, follows_from: object) -> AdmissionLimit:
    return AdmissionLimit(name, str(value), arithmetic, str(follows_from))
