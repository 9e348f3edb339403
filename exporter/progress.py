"""Whether engines decode: active sequences must make tokens, or they are stuck.

Health endpoints do not notice an engine that hangs: the process answers while no token comes.  What
does notice is that there are active sequences, and no token, iteration or finished request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from exporter.readings import UNLABELLED, Distribution, Model, Value
from exporter.view import SignalState, View

Marks = tuple[tuple[str, float], ...]

# What grows only when an engine makes tokens.  Arrivals, refusals and first responses, which may be
# errors, also grow beside an engine that hangs.
_MOVING = ("output_tokens", "itl", "tpot", "e2e", "decode")
_ENGINE_GAUGES = ("sequences_active", "sequences_max")
FORGET_AFTER = 3600.0


@dataclass(frozen=True, slots=True)
class Decoding:
    """What is known of one engine; ``moves`` and ``initialised`` are None where nobody knows.

    ``moved`` is when (seconds) it last was seen to move, or to have nothing to do.
    """

    moves: bool | None
    reason: str
    initialised: bool | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """One engine at its last look; ``moved`` is when it made something or had nothing to do.

    ``made`` is when it last is known to have made something.
    """

    at: float
    marks: Marks
    moved: float
    made: float
    active: float | None
    idle_seen: bool
    initialised: bool


class Progress:
    """Remembers when each engine last moved.

    Stuck is an engine with active sequences in which nothing moved for ``stuck_after`` seconds.
    Time in which nothing was read for ``unwatched_after`` seconds or more does not count.
    """

    def __init__(self, stuck_after: float, unwatched_after: float) -> None:
        self._stuck_after = stuck_after
        self._unwatched_after = unwatched_after
        self._seen: dict[Model, _Seen] = {}

    def update(self, view: View, now: float) -> None:
        """Take in what is known at ``now`` (seconds, which must not go backwards)."""
        for model, states in _by_model(view).items():
            self._seen[model] = self._look(model, states, view.engine_stats_age.get(model), now)
        self._seen = {
            model: seen for model, seen in self._seen.items() if now - seen.at < FORGET_AFTER
        }

    def decoding(self, view: View, now: float) -> dict[Model, Decoding]:
        """Return what is known of every model in ``view`` that is ready and reported on."""
        return {
            model: self._judge(self._seen[model], states, now)
            for model, states in _by_model(view).items()
            if model in self._seen
        }

    def made_since(self, time: float) -> bool:
        """Tell whether any engine is known to have made something after ``time``."""
        return any(seen.made > time for seen in self._seen.values())

    def _look(
        self, model: Model, states: Mapping[str, SignalState], age: float | None, now: float
    ) -> _Seen:
        before = self._seen.get(model)
        marks, active = _marks(states), _gauge(states, "sequences_active")
        if active is None and age is not None and before:
            active = before.active  # the gauges of an engine that stands still are withdrawn
        made = -inf if age is None else now - age
        if before:
            made = max(made, now if marks != before.marks else before.made)
        watched = before is not None and now - before.at < self._unwatched_after
        worked = before is not None and watched and bool(before.active and active)
        return _Seen(
            at=now,
            marks=marks,
            moved=max(before.moved, made) if before and worked else now,
            made=made,
            active=active,
            idle_seen=active == 0 or (before is not None and before.idle_seen),
            initialised=(before is not None and before.initialised) or _initialised(states),
        )

    def _judge(self, seen: _Seen, states: Mapping[str, SignalState], now: float) -> Decoding:
        moves, reason = self._moves(seen, states, now)
        return Decoding(moves, reason, True if seen.initialised else None)

    def _moves(
        self, seen: _Seen, states: Mapping[str, SignalState], now: float
    ) -> tuple[bool | None, str]:
        if seen.active is None:
            why = states["sequences_active"].note if "sequences_active" in states else ""
            return None, f"nobody tells whether sequences are active{f': {why}' if why else ''}"
        still = now - seen.moved
        if not seen.active or still <= self._stuck_after:
            return True, ""
        facts = (
            f"{seen.active:g} active and no token, iteration or finished request for {still:.0f} s"
        )
        if not seen.idle_seen:
            # Some executors write no record when they become idle: what stands still is then old.
            return None, f"{facts}, but this engine was never seen to report that it is idle"
        return False, f"decoding is stuck: {facts}"


def _by_model(view: View) -> dict[Model, dict[str, SignalState]]:
    """Return the signals of the models that are ready and reported on."""
    states = view.by_model()
    return {
        (info.model, info.version): states.get((info.model, info.version), {})
        for info in view.models
        if info.ready and not info.excluded
    }


def _marks(states: Mapping[str, SignalState]) -> Marks:
    totals = [
        (signal, sum(map(_count, states[signal].samples.values())))
        for signal in _MOVING
        if signal in states
    ]
    answered = (
        _count(value)
        for labels, value in (states["requests"].samples if "requests" in states else {}).items()
        if ("outcome", "ok") in labels
    )
    return (*totals, ("requests", sum(answered)))


def _count(value: Value) -> float:
    return value.count if isinstance(value, Distribution) else value


def _gauge(states: Mapping[str, SignalState], signal: str) -> float | None:
    value = states[signal].samples.get(UNLABELLED) if signal in states else None
    return None if isinstance(value, Distribution) else value


def _initialised(states: Mapping[str, SignalState]) -> bool:
    """Whether the engine has published an iteration or made a token."""
    made = (
        sum(map(_count, states["output_tokens"].samples.values()))
        if ("output_tokens" in states)
        else 0.0
    )
    return made > 0 or any(_gauge(states, signal) is not None for signal in _ENGINE_GAUGES)
