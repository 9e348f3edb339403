"""What live servers, or a sidecar that already watches them, have counted since they started.

For a first SLO file, which needs numbers where the doctor needs to know whether there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from exporter import reader
from exporter.config import load_config
from exporter.doctor import diagnose
from exporter.readings import Distribution, Labels, Reading, SourceError, Value
from exporter.sources.fetch import Limits, fetch, new_session, parse_json, public
from slos.errors import InvalidFile, Problem
from slos.first_file import Seen, SeenModel
from slos.signals import SIGNALS

Key = tuple[str, str]
"""Model and signal."""


async def look(
    urls: Sequence[str], version: str, options: Mapping[str, Sequence[str]]
) -> tuple[SeenModel, ...]:
    """Read the servers, or one sidecar, and return every model that is reported on.

    ``options`` are settings of the sidecar as ``load_config`` takes them.  Raises InvalidFile if an
    address is wrong or nothing known answers there.
    """
    limits = Limits(load_config({**options, "triton": [urls[0]]}, {}).timeout)
    if len(urls) == 1 and (seen := await _sidecar(urls[0], limits)) is not None:
        return seen
    diagnosis = await diagnose(urls, (), version, options)
    counted = {(one.model, one.version, one.signal, one.method): one for one in diagnosis.readings}
    found: dict[Key, list[Seen]] = {}
    for state in diagnosis.view.signals:
        reading = counted.get((state.model, state.version, state.signal, state.method))
        about = Seen(state.quality, state.note, state.fix)
        found.setdefault((state.model, state.signal), []).append(_seen(about, _samples(reading)))
    return _models(found)


def _samples(reading: Reading | None) -> Mapping[Labels, Value]:
    return {} if reading is None else reading.samples


def _models(found: Mapping[Key, Sequence[Seen]]) -> tuple[SeenModel, ...]:
    """Put signals together by model; several versions of one are told as one."""
    models: dict[str, dict[str, Seen]] = {}
    for (model, signal), versions in found.items():
        models.setdefault(model, {})[signal] = _together(versions)
    return tuple(SeenModel(name, signals) for name, signals in models.items())


def _seen(about: Seen, samples: Mapping[Labels, Value]) -> Seen:
    """Add up what a signal's series have counted; by outcome, where they tell one."""
    parts = [
        replace(about, edges=value.edges, counts=value.counts)
        if isinstance(value, Distribution)
        else replace(about, values={dict(labels).get("outcome", ""): value})
        for labels, value in samples.items()
    ]
    return _together(parts or [about])


def _together(parts: Sequence[Seen]) -> Seen:
    """Add up parts of one signal: those that are measured, with the buckets of the first."""
    measured = [part for part in parts if part.quality != "unavailable"] or parts[:1]
    first = measured[0]
    counts = [part.counts for part in measured if part.edges == first.edges]
    values: dict[str, float] = {}
    for part in measured:
        for key, value in part.values.items():
            values[key] = values.get(key, 0.0) + value
    return replace(first, counts=tuple(map(sum, zip(*counts, strict=True))), values=values)


# A sidecar


async def _sidecar(url: str, limits: Limits) -> tuple[SeenModel, ...] | None:
    """Return what a sidecar tells at its status page and its metrics; None if there is none."""
    base = url.rstrip("/").removesuffix("/metrics")
    async with new_session() as session:
        session.headers["Accept"] = "application/json"
        try:
            status = parse_json(await fetch(session, "GET", f"{base}/", limits=limits), "")
        except SourceError:
            return None
        if not isinstance(status, dict) or not isinstance(status.get("tokenslo"), str):
            return None
        return await _told(session, base, status, limits)


async def _told(
    session: aiohttp.ClientSession, base: str, status: Mapping[str, Any], limits: Limits
) -> tuple[SeenModel, ...]:
    try:
        answer = await fetch(session, "GET", f"{base}/metrics", limits=limits)
        families = reader.read(answer.body, {signal.metric for signal in SIGNALS.values()})
        found: dict[Key, list[Seen]] = {}
        for model in status["models"]:
            for one in model["signals"] if not model["excluded"] else ():
                key = one["signal"]
                if key not in SIGNALS:  # a younger sidecar has some that are not known here
                    continue
                about = Seen(one["quality"], one["note"], one["fix"])
                of = {"model": model["model"], "version": model["version"], **SIGNALS[key].fixed}
                seen = _exposed(about, families.get(SIGNALS[key].metric), of)
                found.setdefault((model["model"], key), []).append(seen)
    except (SourceError, reader.ExpositionError, KeyError, TypeError, ValueError) as error:
        fix = "look at its status page, and whether it is of this version"
        message = f"does not tell what a sidecar tells: {error}"
        raise InvalidFile([Problem("tokenslo init", 0, public(base), message, fix)]) from None
    return _models(found)


def _exposed(about: Seen, family: reader.Family | None, of: Mapping[str, str]) -> Seen:
    """Add up the samples with these labels."""
    buckets: dict[float, float] = {}
    values: dict[str, float] = {}
    for name, labels, value in family.samples if family else ():
        if not of.items() <= labels.items():
            continue
        if name.endswith("_bucket"):
            edge = float(labels["le"])
            buckets[edge] = buckets.get(edge, 0.0) + value
        elif family is not None and family.type != "histogram":
            outcome = labels.get("outcome", "")
            values[outcome] = values.get(outcome, 0.0) + value
    edges = tuple(sorted(buckets))
    return replace(about, edges=edges, counts=tuple(buckets[e] for e in edges), values=values)
