"""Read a running sidecar: its status page and its metrics, as a view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

import aiohttp

from exporter.samples import Distribution, Labels, ModelInfo, SourceError, Value
from exporter.sources.exposition import text_parser
from exporter.sources.fetch import fetch, parse_json
from exporter.store.view import SignalState, SourceState, View
from promql.http_client import FetchLimits, new_session, public
from slos.errors import InvalidFile, Problem
from slos.signals import SIGNALS

SKIPPED = "tokenslo_tap_skipped_total"
_MALFORMED = (text_parser.ExpositionError, AttributeError, KeyError, TypeError, ValueError)


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
        except (SourceError, *_MALFORMED) as error:
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
    except _MALFORMED as error:
        message = f"{public(base)} is not of this version of tokenslo: {type(error).__name__}"
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
    wanted = {SKIPPED, *(signal.metric for signal in SIGNALS.values())}
    families = text_parser.read(answer.body, wanted)
    objectives = tuple(_objective(one) for one in status["objectives"])
    unready = tuple(
        f"{one['layer']} {one['name']}: {one['reason']}"
        for one in status["layers"]
        if one["ready"] is False
    )
    view = _view(families, status)
    return SidecarReport(status["tokenslo"], view, _unreadable(families), objectives, unready)


def _objective(one: Mapping[str, Any]) -> ReportedObjective:
    return ReportedObjective(**{name: one[name] for name in ReportedObjective._fields})


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
        SignalState(
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
        SourceState(
            one["source"],
            one["up"],
            one["age_seconds"],
            one["read_seconds"],
            one["error"],
            one["errors"],
            one["server_ready"],
        )
        for one in status["sources"]
    ]
    return View(tuple(states), tuple(sources), tuple(models), {})


def _model(one: Mapping[str, Any]) -> ModelInfo:
    return ModelInfo(
        one["model"],
        one["version"],
        one["backend"],
        one["decoupled"],
        one["ready"],
        one["reason"],
        one["excluded"],
    )


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
