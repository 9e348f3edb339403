"""Read a running sidecar: its status page and its metrics, as a view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import inf
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import aiohttp

from exporter.samples import Distribution, Labels, ModelInfo, SourceError, Value
from exporter.sources.exposition import text_parser
from exporter.sources.fetch import fetch, parse_json
from exporter.store.view import SignalState, SourceState, View, grouped_by_model
from promql.http_client import FetchLimits, new_session, public
from slos.errors import InvalidFile, Problem
from slos.signals import SIGNALS

SKIPPED = "tokenslo_tap_skipped_total"
_MALFORMED = (
    *(text_parser.ExpositionError, ArithmeticError, AttributeError),
    *(LookupError, TypeError, ValueError),
)
"""Errors in reading pages that are not those of a sidecar."""
T = TypeVar("T")


class MalformedReportError(Exception):
    """The pages of a server are not those of a sidecar; the text is the first error."""


class ReportedObjective(NamedTuple):
    """An objective on one model as the sidecar evaluates it; ``met`` covers the last minute.

    ``met`` is None without any event.  If ``quality`` is ``unavailable``, ``note`` is the reason.
    """

    service: str
    objective: str
    model: str
    version: str
    target: str
    quality: str
    note: str
    fix: str
    met: bool | None
    good_events: float | None
    bad_events: float | None


class SidecarReport(NamedTuple):
    """A sidecar's view; ``unreadable`` counts responses with an unsupported compression.

    ``unready`` are the reasons why it is not ready.
    """

    version: str
    view: View
    unreadable: int
    objectives: tuple[ReportedObjective, ...] = ()
    unready: tuple[str, ...] = ()


def base_url(url: str) -> str:
    """Return the URL of a sidecar's status page from it or from that of its metrics."""
    return url.rstrip("/").removesuffix("/metrics")


async def read_sidecar(url: str, limits: FetchLimits, command: str) -> SidecarReport | None:
    """Return the report of the sidecar at ``url``, None if it is another server.

    Raises InvalidFile, naming ``command``, if its pages are not those of a sidecar.
    """
    base = base_url(url)
    async with new_session() as session:
        try:
            status = await _status(session, base, limits)
        except SourceError:
            return None
        try:
            return await _report(session, base, status, limits)
        except (SourceError, MalformedReportError) as error:
            fix = "check that it is a tokenslo exporter of this version"
            message = f"is not the status page of a tokenslo exporter: {error}"
            where = Problem(f"tokenslo {command}", 0, public(base), message, fix)
            raise InvalidFile([where]) from None


async def scrape_sidecar(
    session: aiohttp.ClientSession, url: str, limits: FetchLimits
) -> SidecarReport:
    """Return the report of the sidecar at ``url``; raises SourceError."""
    base = base_url(url)
    status = await _status(session, base, limits)
    try:
        return await _report(session, base, status, limits)
    except MalformedReportError as error:
        message = f"{public(base)} is not of this version of tokenslo: {error}"
        raise SourceError("malformed", message) from None


async def _status(
    session: aiohttp.ClientSession, base: str, limits: FetchLimits
) -> Mapping[str, Any]:
    session.headers["Accept"] = "application/json"
    status = parse_json(await fetch(session, "GET", f"{base}/", limits=limits), base)
    if not isinstance(status, dict) or not isinstance(status.get("tokenslo"), str):
        raise SourceError("malformed", f"{public(base)} is not a tokenslo exporter")
    return status


async def _report(
    session: aiohttp.ClientSession, base: str, status: Mapping[str, Any], limits: FetchLimits
) -> SidecarReport:
    answer = await fetch(session, "GET", f"{base}/metrics", limits=limits)
    return parse_report(status, answer.body)


def parse_report(status: Mapping[str, Any], metrics: bytes) -> SidecarReport:
    """Return the report of a sidecar's pages; raises MalformedReportError."""
    try:
        return _parse(status, metrics)
    except _MALFORMED as error:
        raise MalformedReportError(f"{type(error).__name__}: {error}") from error


def _parse(status: Mapping[str, Any], metrics: bytes) -> SidecarReport:
    wanted = {SKIPPED, *(signal.metric for signal in SIGNALS.values())}
    families = text_parser.read(metrics, wanted)
    objectives = tuple(_objective(one) for one in status["objectives"])
    unready = tuple(
        f"{one['layer']} {one['name']}: {one['reason']}"
        for one in status["layers"]
        if one["ready"] is False
    )
    view = _view(families, status)
    return SidecarReport(status["tokenslo"], view, _unreadable(families), objectives, unready)


def _objective(one: Mapping[str, Any]) -> ReportedObjective:
    return _typed(ReportedObjective, **{name: one[name] for name in ReportedObjective._fields})


def _typed(kind: Callable[..., T], **values: object) -> T:
    """Return ``kind(**values)`` if every value has the type of its field; raises TypeError."""
    hints = _hints(kind)
    return kind(**{name: _of_type(value, hints[name]) for name, value in values.items()})


@cache
def _hints(kind: object) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _of_type(value: object, hint: Any) -> object:
    if get_origin(hint) is UnionType:  # of a type and None
        if value is None:
            return None
        hint = get_args(hint)[0]
    if hint is float and isinstance(value, int | float):
        return float(value)
    origin = get_origin(hint) or hint
    if value in get_args(hint) if origin is Literal else isinstance(value, origin):
        return value
    raise TypeError(f"a value is not {hint}")


def _unreadable(families: Mapping[str, text_parser.ParsedFamily]) -> int:
    family = families.get(SKIPPED)
    return sum(
        int(value)
        for _, labels, value in (family.samples if family else ())
        if labels.get("reason") == "compressed"
    )


def _view(families: Mapping[str, text_parser.ParsedFamily], status: Mapping[str, Any]) -> View:
    models = [_model(one) for one in status["models"]]
    states = [
        _typed(
            SignalState,
            signal=signal["signal"],
            model=model["model"],
            version=model["version"],
            method=signal["method"],
            quality=signal["quality"],
            samples=_samples(signal["signal"], families, model["model"], model["version"]),
            note=signal["note"],
            fix=signal["fix"],
        )
        for model in status["models"]
        for signal in (() if model["excluded"] else model["signals"])
        if signal["signal"] in SIGNALS  # a newer sidecar may have more
    ]
    sources = [
        _typed(
            SourceState,
            source=one["source"],
            up=one["up"],
            age=one["age_seconds"],
            read_seconds=one["read_seconds"],
            error=one["error"],
            errors=one["errors"],
            ready=one["server_ready"],
        )
        for one in status["sources"]
    ]
    return View(grouped_by_model(states), tuple(sources), tuple(models), {})


def _model(one: Mapping[str, Any]) -> ModelInfo:
    fields = ("model", "version", "backend", "decoupled", "ready", "reason", "excluded")
    return _typed(ModelInfo, **{name: one[name] for name in fields})


def _samples(
    signal: str, families: Mapping[str, text_parser.ParsedFamily], model: str, version: str
) -> dict[Labels, Value]:
    """Return the samples of one signal of one model, by their other labels."""
    family = families.get(SIGNALS[signal].metric)
    of = {"model": model, "version": version, **SIGNALS[signal].fixed}
    buckets: dict[Labels, dict[float, float]] = {}
    sums: dict[Labels, float] = {}
    values: dict[Labels, Value] = {}
    for name, labels, value in family.samples if family else ():
        if not of.items() <= labels.items():
            continue
        own = tuple(sorted((k, v) for k, v in labels.items() if k not in of and k != "le"))
        if name.endswith("_bucket"):
            buckets.setdefault(own, {})[float(labels["le"])] = value
        elif name.endswith("_sum") and SIGNALS[signal].kind == "histogram":
            sums[own] = value
        elif SIGNALS[signal].kind != "histogram":
            values[own] = value
    return {**values, **dict(_distributions(buckets, sums))}


def _distributions(
    buckets: Mapping[Labels, Mapping[float, float]], sums: Mapping[Labels, float]
) -> Iterator[tuple[Labels, Distribution]]:
    for labels, counts in buckets.items():
        boundaries = tuple(sorted(counts))
        if boundaries[-1] == inf:
            ordered = tuple(counts[boundary] for boundary in boundaries)
            yield labels, Distribution(boundaries, ordered, sums.get(labels, 0.0))
