"""Write a first SLO file for a server, with thresholds that it has met so far.

Each objective states current behaviour, as a start for talks with users, and has the reason in a
comment.  The caller provides the measurements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from textwrap import wrap

from promql.expr import decimal_text
from promql.histogram import histogram_quantile
from slos.durations import format_duration
from slos.fields.values import API_VERSION
from slos.indicators import INDICATORS
from slos.language import DEFAULT_WINDOW
from slos.outcomes import FAILURES
from slos.terminal_text import terminal_text
from slos.yaml_text import entry

WIDTH = 96
_FEW = 100
"""Least events for a share."""
_TARGETS = tuple(map(Decimal, ("0.999", "0.995", "0.99", "0.95", "0.9")))
_WANTED = ("ttft", "itl", "availability", "kv_headroom", "sequence_headroom")
_TAPPED = ("stream_completion", "disconnects", "goodput")


@dataclass(frozen=True, slots=True)
class MeasuredSignal:
    """One signal of one model since its server started.

    ``counts[i]`` observations were at most ``boundaries[i]`` seconds (histograms; the last one is
    ``inf``).  ``values`` are those of a counter by outcome, or of a gauge under "".  A missing
    signal has the quality ``unavailable``; ``note`` and ``fix`` give reason and remedy.
    """

    quality: str
    note: str = ""
    fix: str = ""
    boundaries: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A served model, and its signals by key of :data:`slos.signals.SIGNALS`."""

    name: str
    signals: Mapping[str, MeasuredSignal]


@dataclass(frozen=True, slots=True)
class _Latency:
    """A latency objective, with the threshold to use without measurements."""

    name: str
    indicator: str
    target: Decimal
    usual: float
    why: str


_FIRST_TOKEN = _Latency(
    "first-token",
    "ttft",
    Decimal("0.95"),
    1.0,
    "95%: long prompts take longer, and should not page.",
)
_TOKEN_PACE = _Latency(
    "token-pace",
    "itl",
    Decimal("0.99"),
    0.1,
    "99%: an answer has hundreds of gaps, so one in a hundred is several in each.",
)
_MEAN_PACE = _Latency(
    "mean-pace",
    "tpot",
    Decimal("0.95"),
    0.1,
    "95%: it is about whole requests; the token gaps themselves are not measured here.",
)
_WHOLE_ANSWER = _Latency(
    "whole-answer",
    "e2e",
    Decimal("0.95"),
    30.0,
    "95%: long answers take longer, and should not page.",
)


def text(models: Iterable[MeasuredModel], *, about: str) -> str:
    """Return an SLO file with one service per model; ``about`` is its first comment.

    Empty if no objective can be measured.
    """
    taken: set[str] = set()
    documents = []
    for model in models:
        objectives = [line for part in _objectives(model) for line in ("", *part)]
        if objectives:
            lines = _service(model, _name(model.name, taken))
            documents.append("\n".join([*lines, *objectives[1:], *_rest(model)]))
    if not documents:
        return ""
    head = [*_comment(about), *_comment(_ADVICE), "", ""]
    return "\n".join(head) + "\n---\n".join(documents) + "\n"


_ADVICE = (
    "The thresholds are what this server keeps now, not what its users need: talk to them, and "
    "tighten or loosen. Read it again under the usual load if there was little."
)


def _service(model: MeasuredModel, name: str) -> Iterator[str]:
    yield from entry("apiVersion", API_VERSION)
    yield from entry("service", name)
    yield from entry("selector", {"model": model.name})
    yield from entry("window", DEFAULT_WINDOW)
    yield "objectives:"


def _name(model: str, taken: set[str]) -> str:
    """Return a unique name for a model's service, also in the names of its alerts."""
    near = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:50].strip("-")
    base = near if near[:1].isalpha() else f"model-{near}".strip("-")
    name, number = base, 2
    while name.replace("-", "") in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name.replace("-", ""))
    return name


# Objectives


def _objectives(model: MeasuredModel) -> Iterator[list[str]]:
    found: dict[str, Decimal] = {}
    for first, otherwise in ((_FIRST_TOKEN, _WHOLE_ANSWER), (_TOKEN_PACE, _MEAN_PACE)):
        for each in (first, otherwise):
            if (threshold := _threshold(model, each)) is not None:
                found[each.indicator] = threshold
                yield _latency(model, each, threshold)
                break
    if "requests" in _measured(model):
        yield _availability(model.signals["requests"].values)
    if "streams" in _measured(model):
        yield _completion(model.signals["streams"].values)
        yield from _goodput(model, found)
    yield from _headroom(model)


def _measured(model: MeasuredModel) -> frozenset[str]:
    signals = model.signals.items()
    return frozenset(key for key, seen in signals if seen.quality != "unavailable")


def _threshold(model: MeasuredModel, of: _Latency) -> Decimal | None:
    """Return the lowest bucket boundary that met the target, else the nearest one."""
    seen = model.signals.get(of.indicator)
    if seen is None or seen.quality == "unavailable":
        return None
    boundaries = [boundary for boundary in seen.boundaries if 0 < boundary < inf]
    if not boundaries:
        return None
    total = seen.counts[-1]
    kept = zip(seen.boundaries, seen.counts, strict=True)
    enough = [
        boundary
        for boundary, count in kept
        if boundary in boundaries
        and (count >= float(of.target) * total if total else boundary >= of.usual)
    ]
    return Decimal(repr(min(enough, default=max(boundaries)))).normalize()


def _latency(model: MeasuredModel, of: _Latency, threshold: Decimal) -> list[str]:
    seen, events = model.signals[of.indicator], INDICATORS[of.indicator].events
    total = seen.counts[-1]
    if not total:
        comment = f"No {events} seen yet: a usual threshold, to be read again under load."
    else:
        within = seen.counts[seen.boundaries.index(float(threshold))] / total
        share = decimal_text(of.target * 100)
        quantile = histogram_quantile(float(of.target), seen.boundaries, seen.counts)
        now = f"about {quantile:.3g} s" if quantile < inf else "beyond the last bucket boundary"
        comment = f"p{share} now {now}, {_count(total)} {events}{_little(total)}"
        comment += (
            f": {within:.1%} were within {format_duration(threshold)}, the next bucket boundary."
        )
        if within < float(of.target):
            comment += " That is less than the target, and there is no higher boundary."
    estimate = f" An estimate: {seen.note}." if seen.quality == "estimate" and seen.note else ""
    about = {"threshold": format_duration(threshold), "target": of.target}
    return _objective(f"{comment} {of.why}{estimate}", of.name, of.indicator, about)


def _availability(requests: Mapping[str, float]) -> list[str]:
    good, bad = requests.get("ok", 0.0), sum(requests.get(outcome, 0.0) for outcome in FAILURES)
    return _shares("availability", "availability", good, bad, "requests were served")


def _completion(streams: Mapping[str, float]) -> list[str]:
    good, bad = streams.get("ok", 0.0), sum(streams.get(outcome, 0.0) for outcome in FAILURES)
    return _shares("completion", "stream_completion", good, bad, "streams ran to their end")


def _shares(name: str, indicator: str, good: float, bad: float, what: str) -> list[str]:
    """Yield the highest usual target that was met, of few events the highest safe one."""
    total = good + bad
    if total < _FEW:
        target = Decimal("0.99")
        noun = what.partition(" ")[0]
        comment = f"{_count(total)} {noun} so far are too few to judge by: a usual target."
        return _objective(comment, name, indicator, {"target": target})
    share = good / total
    target = next((one for one in _TARGETS if share >= one), _TARGETS[-1])
    comment = f"{share:.2%} of {_count(total)} {what}: the highest usual target that is kept."
    if share < target:
        comment = f"{share:.2%} of {_count(total)} {what}, which is less than this usual target."
    return _objective(comment, name, indicator, {"target": target})


def _goodput(model: MeasuredModel, found: Mapping[str, Decimal]) -> Iterator[list[str]]:
    clauses = {key: found[key] for key in ("ttft", "tpot") if key in found}
    if "tpot" not in clauses and (pace := _threshold(model, _MEAN_PACE)) is not None:
        clauses["tpot"] = pace
    if clauses:
        written = {key: format_duration(threshold) for key, threshold in clauses.items()}
        comment = (
            "Requests that keep all of it at once; the clauses are as above, where there is one."
        )
        yield _objective(
            comment, "goodput", "goodput", {"clauses": written, "target": _TARGETS[-1]}
        )


def _headroom(model: MeasuredModel) -> Iterator[list[str]]:
    measured = _measured(model)
    if "kv_utilization" in measured:
        used = max(model.signals["kv_utilization"].values.values(), default=None)
        now = "" if used is None else f"{used:.0%} of the KV cache is used now. "
        comment = f"{now}99%: bursts may fill it for a moment, a long prompt then waits."
        about = {"threshold": "90%", "target": Decimal("0.99")}
        yield _objective(comment, "kv-headroom", "kv_headroom", about)
    if {"sequences_active", "sequences_max"} <= measured:
        active, most = (
            sum(model.signals[key].values.values()) for key in ("sequences_active", "sequences_max")
        )
        comment = f"{active:g} of {most:g} sequences are active now. 99%: as above."
        about = {"threshold": "95%", "target": Decimal("0.99")}
        yield _objective(comment, "sequence-headroom", "sequence_headroom", about)


def _objective(comment: str, name: str, indicator: str, about: Mapping[str, object]) -> list[str]:
    def written(value: object) -> str:
        if isinstance(value, Decimal):
            return f"{decimal_text(value * 100)}%"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{key}: {part}" for key, part in value.items()) + "}"
        return str(value)

    parts = {"name": name, "indicator": indicator, **about}
    line = ", ".join(f"{key}: {written(value)}" for key, value in parts.items())
    return [*(f"  {line}" for line in _comment(comment)), f"  - {{{line}}}"]


# Missing signals


def _rest(model: MeasuredModel) -> Iterator[str]:
    """Yield comments on signals that are not measured, and their remedy."""
    gaps: dict[tuple[str, str], list[str]] = {}
    for indicator in _WANTED:
        seen = model.signals.get(INDICATORS[indicator].signals[0])
        if seen is not None and seen.quality == "unavailable":
            gaps.setdefault((seen.note, seen.fix), []).append(indicator)
    if gaps or "streams" not in _measured(model):
        yield ""
        yield "  # Not measured here:"
    for (note, fix), keys in gaps.items():
        comment = f"{', '.join(keys)}: {note}{f'; {fix}' if fix else ''}"
        yield from _bullet(comment)
    if "streams" not in _measured(model):
        comment = (
            "they are measured on the streams; run the sidecar with --tap "
            "(docs/how-to/proxy-tap.md)"
        )
        streams = model.signals.get("streams")
        if streams and streams.fix and "--tap" not in streams.fix:  # it has a tap
            comment = f"{streams.note}; {streams.fix}"
        yield from _bullet(f"{', '.join(_TAPPED)}: {comment}")


def _bullet(comment: str) -> list[str]:
    first, *more = wrap(" ".join(terminal_text(comment).split()), WIDTH - 6, break_on_hyphens=False)
    return [f"  # - {first}", *(f"  #   {line}" for line in more)]


def _comment(comment: str) -> list[str]:
    lines = wrap(" ".join(terminal_text(comment).split()), WIDTH - 4, break_on_hyphens=False)
    return [f"# {line}" for line in lines]


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _little(total: float) -> str:
    return " (too few to say much)" if total < _FEW else ""
