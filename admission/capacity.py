"""The measured capacity of one server, from the JSON report of ``tokenslo load``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NoReturn

from slos.errors import InvalidFile, Problem

MAX_BYTES = 16 << 20
_MAX_NUMBER = 1e12
_FIX = "give load.json, which `tokenslo load -o DIR` writes"
_WITH_OBJECTIVES = "run `tokenslo load --slo FILE` at lower loads, or with --search"
_RATE, _SECONDS, _TOKENS = Decimal("0.001"), Decimal("0.001"), Decimal("0.1")


@dataclass(frozen=True, slots=True)
class MeasuredCapacity:
    """The highest load at which one server keeps every objective.

    ``rate`` is in requests per second, ``in_flight`` the mean number of requests in the server.
    ``unqueued_ttft`` is the TTFT in seconds at the lowest load.  Tokens are means per request,
    ``prefill_rate`` is in input tokens per second; None if they were not measured.  ``objectives``
    are the limits of the objectives of a load test, by name.
    """

    file: str
    load: str
    rate: Decimal
    in_flight: Decimal
    unqueued_ttft: Decimal
    input_tokens: Decimal | None = None
    output_tokens: Decimal | None = None
    prefill_rate: Decimal | None = None
    objectives: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def closed_loop(self) -> bool:
        """Whether the number of users was given, and not the rate."""
        return self.load.startswith("concurrency")


def read_capacity(text: str, file: str) -> MeasuredCapacity:
    """Return the capacity that a load report shows; raises InvalidFile."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidFile([Problem(file, 0, "", "is nested too deeply", _FIX)]) from None
    except json.JSONDecodeError as error:
        problem = Problem(file, error.lineno, "", f"is not valid JSON: {error.msg}", _FIX)
        raise InvalidFile([problem]) from None
    except ValueError:  # an integer of too many digits
        raise InvalidFile([Problem(file, 0, "", "has a number that is too long", _FIX)]) from None
    return _capacity(_ReportPart(file, "", value))


@dataclass(frozen=True, slots=True)
class _ReportPart:
    """A part of a report and its place."""

    file: str
    name: str
    value: object

    def refuse(self, message: str, fix: str = _FIX) -> NoReturn:
        raise InvalidFile([Problem(self.file, 0, self.name, message, fix)])

    def part(self, key: str) -> _ReportPart:
        if not isinstance(self.value, dict):
            self.refuse("is not an object of a load report")
        name = f"{self.name}.{key}" if self.name else key
        if key not in self.value:
            _ReportPart(self.file, name, None).refuse("is missing")
        return _ReportPart(self.file, name, self.value[key])

    def parts(self, key: str) -> list[_ReportPart]:
        found = self.part(key)
        if not isinstance(found.value, list):
            found.refuse("is not a list of a load report")
        return [
            _ReportPart(self.file, f"{found.name}[{index}]", each)
            for index, each in enumerate(found.value)
        ]

    def text(self, key: str) -> str:
        found = self.part(key)
        if not isinstance(found.value, str):
            found.refuse("is not text")
        return found.value

    def number(self, key: str) -> Decimal:
        found = self.optional(key)
        if found is None:
            self.part(key).refuse("has no value")
        return found

    def optional(self, key: str) -> Decimal | None:
        """Return a number of at least 0, None for null."""
        found = self.part(key)
        if found.value is None:
            return None
        if not isinstance(found.value, int | float) or isinstance(found.value, bool):
            found.refuse("is not a number")
        if not 0 <= found.value <= _MAX_NUMBER:  # also refuses NaN
            found.refuse("is not a number of at least 0")
        return Decimal(str(found.value))


def _capacity(report: _ReportPart) -> MeasuredCapacity:
    endpoints = report.parts("endpoints")
    levels = endpoints[0].parts("levels") if endpoints else []
    measured = [level for level in levels if level.number("completed_per_second")]
    if not measured:
        report.refuse("has no load with complete requests")
    level = _kept(report, measured)
    lowest = min(measured, key=_in_flight)
    ttft = lowest.part("latencies").part("ttft")
    if ttft.value is None:
        ttft.refuse("was not measured")
    rate = level.number("completed_per_second")
    notes = []
    if lowest is level:
        notes.append(
            f"Only {_load(level)} was measured, so TTFT without a queue includes the queue of that "
            "load. Measure a lower load too."
        )
    return MeasuredCapacity(
        report.file,
        _load(level),
        _rounded(rate, _RATE),
        _rounded(_in_flight(level), _TOKENS),
        _rounded(ttft.number("p99"), _SECONDS),
        _input_tokens(level),
        _rounded(level.number("output_tokens_per_second") / rate, _TOKENS),
        _prefill_rate(lowest),
        {each.text("name"): each.text("limit") for each in level.parts("objectives")},
        tuple(notes),
    )


def _kept(report: _ReportPart, levels: list[_ReportPart]) -> _ReportPart:
    """Return the highest load that keeps every objective."""
    if report.part("highest_rate").value is not None:
        rate = report.part("highest_rate").optional("kept")
        found = [
            level for level in levels if _kind(level) == "rate" and level.number("value") == rate
        ]
        if rate is None or not found:
            report.part("highest_rate").refuse("no rate kept every objective", _WITH_OBJECTIVES)
        return found[-1]
    verdicts = [level.part("verdict").value for level in levels]
    if not any(verdicts):
        report.refuse("has no verdict on objectives", "run `tokenslo load --slo FILE`")
    kept = [level for level, verdict in zip(levels, verdicts, strict=True) if verdict == "kept"]
    if not kept:
        report.refuse("no load kept every objective", _WITH_OBJECTIVES)
    return max(kept, key=lambda level: level.number("completed_per_second"))


def _kind(level: _ReportPart) -> str:
    kind = level.text("kind")
    if kind not in ("rate", "concurrency"):
        level.part("kind").refuse("is not rate or concurrency")
    return kind


def _load(level: _ReportPart) -> str:
    return f"{_kind(level)} {level.number('value').normalize():f}"


def _in_flight(level: _ReportPart) -> Decimal:
    """Return the mean number of requests in the server: given, or by Little's law."""
    if _kind(level) == "concurrency":
        return level.number("value")
    whole = level.part("latencies").part("e2e")
    if whole.value is None:
        whole.refuse("was not measured")
    return level.number("completed_per_second") * whole.number("mean")


def _input_tokens(level: _ReportPart) -> Decimal | None:
    """Return the mean of the server's counts, None if it reports none."""
    total = count = Decimal(0)
    for each in level.parts("prompts"):
        mean, requests = each.optional("mean_input_tokens"), each.number("requests")
        if mean is not None:
            total, count = total + mean * requests, count + requests
    return _rounded(total / count, _TOKENS) if count else None


def _prefill_rate(level: _ReportPart) -> Decimal | None:
    """Return input tokens per second until the first token, of the class where it is highest."""
    rates = []
    for each in level.parts("prompts"):
        tokens, ttft = each.optional("mean_input_tokens"), each.part("ttft")
        if tokens is not None and ttft.value is not None and (median := ttft.number("p50")):
            rates.append(tokens / median)
    return _rounded(max(rates), Decimal(1)) if rates and max(rates) >= 1 else None


def _rounded(value: Decimal, to: Decimal) -> Decimal:
    """Round so that the printed arithmetic is exact, with one step as the least positive value."""
    return max(value.quantize(to), to) if value else Decimal(0)
