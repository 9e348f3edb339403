"""The first screen of the status page: health, objectives, bottlenecks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

from exporter.objectives.objective_status import ObjectiveState
from exporter.samples import Model
from exporter.store.view import SourceState
from exporter.web.model_load import ModelLoad, has_traffic, model_load
from exporter.web.status import Status
from slos.indicators import INDICATORS

Level = Literal["good", "fair", "bad", "none"]
"""``none`` is an answer without a verdict, such as no traffic."""

SHOWN_REASONS = 3
NO_TRAFFIC = "no traffic in the last minute"

_GAUGED = tuple(key for key, indicator in INDICATORS.items() if indicator.in_slices)


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """An answer in a few words, and the details."""

    level: Level
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The headline and the three answers that it summarizes."""

    headline: PageAnswer
    health: PageAnswer
    objectives: PageAnswer
    limits: PageAnswer


def summarize(status: Status) -> Summary:
    """Summarize a status; the most urgent finding is the headline."""
    health, objectives, limits = _health(status), _objectives(status), _limits(status)
    return Summary(_headline(status, health, objectives, limits), health, objectives, limits)


def objective_name(state: ObjectiveState) -> str:
    """Return service and objective: ``chat/first-token``."""
    return f"{state.service}/{state.objective}"


def verdict(state: ObjectiveState) -> PageAnswer:
    """Return whether an objective was met in the last minute; gauges are met now."""
    if state.quality == "unavailable":
        return PageAnswer("none", "unavailable")
    if state.good_events is None or state.bad_events is None:
        return PageAnswer("none", "evaluated in Prometheus only")
    total = state.good_events + state.bad_events
    if not total:
        return PageAnswer("none", "no events")
    level: Level = "good" if state.met else "bad"
    text = "met" if state.met else "not met"
    if state.indicator in _GAUGED:
        return PageAnswer(level, f"{text} now")
    # Rounded down: 99.96% must not appear as 100%.
    share = floor(1000 * state.good_events / total) / 10
    return PageAnswer(level, text, (f"{share:g}% of {total:,.0f} good",))


def _headline(
    status: Status, health: PageAnswer, objectives: PageAnswer, limits: PageAnswer
) -> PageAnswer:
    if health.level == "bad":
        return health
    failing = dict.fromkeys(objective_name(one) for one in status.objectives if one.met is False)
    if failing:
        noun = "Objective" if len(failing) == 1 else f"{len(failing)} objectives"
        return PageAnswer("bad", f"{noun} not met: {_listed(tuple(failing))}")
    if limits.level == "fair":
        return PageAnswer("fair", f"Healthy, but limited by {limits.text}")
    if health.level == "fair":
        return PageAnswer("fair", health.text, health.details)
    if is_idle(status):
        return PageAnswer("good", f"Healthy, {NO_TRAFFIC}")
    return PageAnswer("good", "Healthy")


def is_idle(status: Status) -> bool:
    """Whether no model had traffic in the last minute, and that is measured."""
    traffic = {has_traffic(signals) for signals in status.view.by_model.values()}
    return False in traffic and True not in traffic


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_REASONS
    return ", ".join(names[:SHOWN_REASONS]) + (f" and {more} more" if more > 0 else "")


def _health(status: Status) -> PageAnswer:
    sources = [one for one in status.view.sources if "/" not in one.source]
    down = [one for one in sources if not one.up]
    reasons = status.readiness.reasons
    if down:
        names = ", ".join(one.source for one in down)
        text = f"Source {names} is down" if len(down) == 1 else f"Sources {names} are down"
        # The readiness reports the same after a while.
        others = [one for one in reasons if not one.startswith("source ")]
        return PageAnswer("bad", text, (*map(_lost, down), *others))
    if not sources:
        return PageAnswer("bad", "No source", reasons)
    if reasons:
        return PageAnswer("bad", "Not ready", reasons)
    problems = (
        *(f"{one.source}: {one.error}" for one in status.view.sources if not one.up),
        *(f"task {one.task}: {one.error}" for one in status.tasks if not one.running),
    )
    if problems:
        return PageAnswer("fair", "Ready, but not everything is read", problems)
    scraped = ", ".join(f"{one.source} scraped{_age(one)}" for one in sources)
    return PageAnswer("good", "Ready", (scraped,))


def _lost(source: SourceState) -> str:
    when = "never" if source.age is None else "last"
    why = f": {source.error}" if source.error else ""
    return f"{source.source} was {when} scraped{_age(source)}{why}"


def _age(source: SourceState) -> str:
    return "" if source.age is None else f" {source.age:.1f} s ago"


def _objectives(status: Status) -> PageAnswer:
    states = status.objectives
    if not states:
        return PageAnswer("none", "No objectives", ("start the sidecar with --slo FILE",))
    failing = [one for one in states if one.met is False]
    met = sum(one.met is True for one in states)
    missing = [one for one in states if one.quality == "unavailable"]
    others = len(states) - met - len(failing) - len(missing)
    rest = (
        *((f"{others} without events",) if others else ()),
        *((f"{len(missing)} unavailable",) if missing else ()),
    )
    if failing:
        several = len({(one.model, one.version) for one in states}) > 1
        shown = tuple(_failing(one, several=several) for one in failing[:SHOWN_REASONS])
        more = len(failing) - len(shown)
        details = (*shown, *((f"and {more} more",) if more else ()), *rest)
        return PageAnswer("bad", f"{len(failing)} of {len(states)} not met", details)
    if met:
        return PageAnswer("good", f"{met} met" if rest else f"All {met} met", rest)
    if others:
        return PageAnswer("none", NO_TRAFFIC.capitalize() if is_idle(status) else "No events", rest)
    return PageAnswer("fair", "None can be measured", (missing[0].note,))


def _failing(state: ObjectiveState, *, several: bool) -> str:
    of_model = f" ({state.model})" if several and state.model else ""
    share = "".join(f"{detail}, " for detail in verdict(state).details)
    return f"{objective_name(state)}{of_model}: {share}target {state.target_text}"


def _limits(status: Status) -> PageAnswer:
    loads = {model: model_load(signals) for model, signals in status.view.by_model.items()}
    found = [(model, limit.text) for model, load in loads.items() if (limit := load.limit())]
    if found:
        several = len(loads) > 1
        texts = tuple(f"{text} ({model[0]})" if several else text for model, text in found)
        more = len(texts) - SHOWN_REASONS
        details = (*texts[1:SHOWN_REASONS], *((f"and {more} more",) if more > 0 else ()))
        return PageAnswer("fair", texts[0], details)
    if all(_is_unmeasured(load) for load in loads.values()):
        return PageAnswer("none", "Not measured", ("neither sequences nor KV cache are available",))
    return PageAnswer("good", "Nothing", _headroom(loads))


def _is_unmeasured(load: ModelLoad) -> bool:
    return load.active is None and load.waiting is None and load.kv_utilization is None


def _headroom(loads: dict[Model, ModelLoad]) -> tuple[str, ...]:
    """Describe the fullest KV cache and batch, and that no sequence waits."""
    caches = [one.kv_utilization for one in loads.values() if one.kv_utilization is not None]
    batches = [(share, load) for load in loads.values() if (share := load.busy_share) is not None]
    texts = []
    if caches:
        texts.append(f"KV cache {max(caches):.0%} used")
    if batches:
        _, load = max(batches, key=lambda one: one[0])
        texts.append(f"{load.active:,.0f} of {load.maximum:,.0f} sequences active")
    if any(one.waiting is not None for one in loads.values()):
        texts.append("none waiting")
    return (", ".join(texts),) if texts else ()
