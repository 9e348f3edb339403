"""Detect models whose decoding is stuck: active requests, but no tokens.

Health endpoints do not detect a hanging engine: the process responds but produces no token.  Two
observations do:

* Streams at a tap wait for a token and no stream of the model receives one.  This needs no gauges
  of the engine.
* The engine reports active sequences, but no token, iteration or finished request.

One stalled stream is not a stuck model while other streams of the model receive tokens: objectives
on the longest gap evaluate single streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from exporter.samples import Model, ModelInfo, count_of
from exporter.store.view import SignalState, View, WaitingStreams, gauge

Totals = Mapping[str, float]
"""Totals by signal."""

# Counters that grow only when an engine produces tokens.  Arrivals, rejections and first responses,
# which may be errors, also grow while an engine hangs.
_PROGRESS = ("output_tokens", "itl", "tpot", "e2e", "decode")
# A tap's first tokens are tokens.
_TAP_PROGRESS = (*_PROGRESS, "ttft")
AT_REST = "trtllm_at_rest"
"""The method of a gauge before the engine's first iteration."""
_ENGINE_GAUGES = ("sequences_active", "sequences_max")
_NO_GAUGE = "no gauge of active sequences and no tap for its streams"
FORGET_AFTER = 3600.0
_SNAPSHOT = 0.5
"""Minimum seconds between two iterations: the age of the last one is measured before a snapshot,
whose duration varies."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decode progress of one model; ``progressing`` and ``initialised`` are None where unknown."""

    progressing: bool | None
    reason: str
    initialised: bool | None


@dataclass(frozen=True, slots=True)
class _TrackedEngine:
    """One engine at the last update.

    ``produced_at`` is when it last produced something, ``progressed_at`` when it last produced
    something or was idle.
    """

    at: float
    totals: Totals
    progressed_at: float
    produced_at: float
    active: float | None
    idle_seen: bool
    initialised: bool
    stall: _Stall | None


@dataclass(frozen=True, slots=True)
class _Stall:
    """How long streams at a tap have waited without a token.

    ``at`` is the time of the tap's snapshot, ``waiting`` the streams that waited then, and
    ``seconds`` the time since the last token in which at least one stream waited.  ``last_wait`` is
    the last time a stream waited.
    """

    at: float
    waiting: int
    seconds: float
    last_wait: float


class DecodeProgress:
    """Track when each model last made progress.

    A model is stuck if it has active sequences or waiting streams, but made no progress for
    ``stuck_after`` seconds.  Intervals of ``unwatched_after`` seconds or more between two updates
    do not count.
    """

    def __init__(self, stuck_after: float, unwatched_after: float) -> None:
        self._stuck_after = stuck_after
        self._unwatched_after = unwatched_after
        self._engines: dict[Model, _TrackedEngine] = {}

    def update(self, view: View, now: float) -> None:
        """Update the progress from a view of ``now`` (seconds, which must not go backwards)."""
        tracked = _tracked_models(view)
        for info, states in tracked:
            model = info.model, info.version
            self._engines[model] = self._engine_state(model, states, view, now)
        for info, _ in tracked:
            if info.backend == "ensemble":
                self._reset_stall_by_engines(info, now)
        self._engines = {
            model: state for model, state in self._engines.items() if now - state.at < FORGET_AFTER
        }

    def decoding(self, view: View, now: float) -> dict[Model, Decoding]:
        """Return the progress of every tracked model in ``view``; threads may call it."""
        engines = self._engines
        return {
            model: self._decoding(engines[model], states, now)
            for info, states in _tracked_models(view)
            if (model := (info.model, info.version)) in engines
        }

    def produced_since(self, time: float) -> bool:
        """Whether any engine has produced a token or finished a request after ``time``."""
        return any(state.produced_at > time for state in self._engines.values())

    def _engine_state(
        self, model: Model, states: Mapping[str, SignalState], view: View, now: float
    ) -> _TrackedEngine:
        before = self._engines.get(model)
        age = view.engine_stats_age.get(model)
        totals, active = _totals(states), gauge(states, "sequences_active")
        grew = before is not None and any(
            total > before.totals.get(signal, 0.0) for signal, total in totals.items()
        )
        if active is None and age is not None and before:
            active = before.active  # the gauges of an idle or hanging engine are withdrawn
        produced = -inf if age is None else now - age
        if before:
            produced = max(produced, now if grew else before.produced_at)
            totals = {**before.totals, **totals}  # a signal may be unavailable for a while
        watched = before is not None and now - before.at < self._unwatched_after
        worked = before is not None and watched and bool(before.active and active)
        # Iterations of an idle engine are no progress: streams may wait in front of it.
        iterated = before is not None and bool(active) and produced - before.produced_at > _SNAPSHOT
        return _TrackedEngine(
            at=now,
            totals=totals,
            progressed_at=max(before.progressed_at, produced) if before and worked else now,
            produced_at=produced,
            active=active,
            idle_seen=active == 0 or (before is not None and before.idle_seen),
            initialised=(before is not None and before.initialised) or _initialised(states),
            stall=self._stall(
                before.stall if before else None,
                view.waiting_streams.get(model),
                progressed=grew or iterated,
            ),
        )

    def _stall(
        self, before: _Stall | None, streams: WaitingStreams | None, *, progressed: bool
    ) -> _Stall | None:
        """Add the time since the last snapshot of the tap, unless the model made progress in it.

        Time in which no stream waits does not count, and after ``stuck_after`` of it the stall is
        reset.  A last stream that ends without a token does not end the stall: clients with short
        time-outs would otherwise hide it.
        """
        if streams is None:
            return None
        if before is None or progressed:
            return _Stall(streams.at, streams.count, 0.0, streams.at)
        passed = streams.at - before.at
        seconds = before.seconds
        if before.waiting and streams.count and passed < self._unwatched_after:
            seconds += passed
        last_wait = streams.at if streams.count else before.last_wait
        if streams.at - last_wait > self._stuck_after:
            seconds = 0.0
        return _Stall(streams.at, streams.count, seconds, last_wait)

    def _reset_stall_by_engines(self, info: ModelInfo, now: float) -> None:
        """Reset the stall of an ensemble while an engine that it may call iterates."""
        model = info.model, info.version
        state = self._engines[model]
        engines = (one for other, one in self._engines.items() if other != model and one.active)
        if state.stall and any(now - one.produced_at <= state.stall.seconds for one in engines):
            self._engines[model] = replace(state, stall=replace(state.stall, seconds=0.0))

    def _decoding(
        self, state: _TrackedEngine, states: Mapping[str, SignalState], now: float
    ) -> Decoding:
        progressing, reason = self._at_taps(state.stall)
        if progressing is not False:
            engine_progressing, engine_reason = self._in_engine(state, states, now)
            if engine_progressing is False or progressing is None:
                progressing, reason = engine_progressing, engine_reason
        return Decoding(progressing, reason, True if state.initialised else None)

    def _at_taps(self, stall: _Stall | None) -> tuple[bool | None, str]:
        if stall is None:
            return None, ""
        if not stall.waiting or stall.seconds <= self._stuck_after:
            return True, ""
        streams = "1 stream waits" if stall.waiting == 1 else f"{stall.waiting} streams wait"
        return (
            False,
            f"decoding is stuck: {streams} at the tap and no stream of this model received a token "
            f"for {stall.seconds:.0f} s",
        )

    def _in_engine(
        self, state: _TrackedEngine, states: Mapping[str, SignalState], now: float
    ) -> tuple[bool | None, str]:
        if state.active is None:
            why = states["sequences_active"].note if "sequences_active" in states else ""
            return None, f"decode progress is unknown: {why or _NO_GAUGE}"
        idle_seconds = now - state.progressed_at
        if not state.active or idle_seconds <= self._stuck_after:
            return True, ""
        facts = (
            f"{state.active:g} active and no token, iteration or finished request "
            f"for {idle_seconds:.0f} s"
        )
        if not state.idle_seen:
            # Some executors write no record when they become idle: their gauges are then outdated.
            return None, f"{facts}, but this engine never reported that it was idle"
        return False, f"decoding is stuck: {facts}"


def _tracked_models(view: View) -> list[tuple[ModelInfo, Mapping[str, SignalState]]]:
    """Return the models to track with their signals: ready ones and those with waiting streams."""
    states = view.by_model
    idle = WaitingStreams(0.0, 0)
    return [
        (info, states.get(model, {}))
        for info in view.models
        if (model := (info.model, info.version))
        and ((info.ready and not info.excluded) or view.waiting_streams.get(model, idle).count > 0)
    ]


def _totals(states: Mapping[str, SignalState]) -> Totals:
    totals = {
        signal: sum(map(count_of, state.samples.values()))
        for signal in _TAP_PROGRESS
        if (state := states.get(signal)) and state.samples
        if signal in _PROGRESS or state.method.startswith("wire")
    }
    requests = states["requests"].samples if "requests" in states else {}
    ok = [count_of(value) for labels, value in requests.items() if ("outcome", "ok") in labels]
    return totals | ({"requests": sum(ok)} if ok else {})


def _initialised(states: Mapping[str, SignalState]) -> bool:
    """Whether the engine has published an iteration or produced a token."""
    produced = (
        sum(map(count_of, states["output_tokens"].samples.values()))
        if ("output_tokens" in states)
        else 0.0
    )
    return produced > 0 or any(
        gauge(states, signal) is not None and states[signal].method != AT_REST
        for signal in _ENGINE_GAUGES
    )
