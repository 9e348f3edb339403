"""Decode progress of every model: work under way must produce tokens, or decoding is stuck.

Health endpoints do not notice an engine that hangs: the process answers while no token comes.  Two
observations show it:

* Streams at a tap wait for a token and no stream of the model gets one.  This holds whatever the
  engine reports, also for models that publish no gauges.
* The engine reports active sequences, and no token, iteration or finished request.

One silent stream is not a stuck model while others of the same model get tokens: objectives on the
longest gap judge single streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from exporter.samples import UNLABELLED, Distribution, Model, ModelInfo, Value
from exporter.store.view import SignalState, View, WaitingStreams

Marks = Mapping[str, float]
"""Totals by signal."""

# Counters that grow only when an engine produces tokens.  Arrivals, refusals and first responses,
# which may be errors, also grow beside an engine that hangs.
_MOVING = ("output_tokens", "itl", "tpot", "e2e", "decode")
# A tap's first tokens are tokens.
_MOVING_AT_TAPS = (*_MOVING, "ttft")
AT_REST = "trtllm_at_rest"
"""The method of a gauge of an engine that has run no iteration yet."""
_ENGINE_GAUGES = ("sequences_active", "sequences_max")
_NO_GAUGE = "no gauge of active sequences and no tap that sees its streams"
FORGET_AFTER = 3600.0
_SNAPSHOT = 0.5
"""Seconds by which an iteration must be later than the one before: the age of the last one is taken
before a snapshot whose duration varies."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decode progress of one model; ``moves`` and ``initialised`` are None where unknown."""

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
    silence: _Silence | None


@dataclass(frozen=True, slots=True)
class _Silence:
    """How long streams at a tap have waited without a token.

    ``at`` is the time of the tap's snapshot, ``waiting`` the streams that waited then, and
    ``seconds`` the time since the last token in which at least one stream waited.  ``waited`` is
    when one last did.
    """

    at: float
    waiting: int
    seconds: float
    waited: float


class DecodeProgress:
    """Remembers when each model last made progress.

    Stuck is a model with active sequences or waiting streams in which nothing moved for
    ``stuck_after`` seconds.  Gaps between two looks of ``unwatched_after`` seconds or more do not
    count.
    """

    def __init__(self, stuck_after: float, unwatched_after: float) -> None:
        self._stuck_after = stuck_after
        self._unwatched_after = unwatched_after
        self._seen: dict[Model, _Seen] = {}

    def update(self, view: View, now: float) -> None:
        """Take in a view of ``now`` (seconds, which must not go backwards)."""
        judged = _judged(view)
        for info, states in judged:
            model = info.model, info.version
            self._seen[model] = self._look(model, states, view, now)
        for info, _ in judged:
            if info.backend == "ensemble":
                self._follow_engines(info, now)
        self._seen = {
            model: seen for model, seen in self._seen.items() if now - seen.at < FORGET_AFTER
        }

    def decoding(self, view: View, now: float) -> dict[Model, Decoding]:
        """Return the progress of every judged model in ``view``."""
        return {
            model: self._judge(self._seen[model], states, now)
            for info, states in _judged(view)
            if (model := (info.model, info.version)) in self._seen
        }

    def made_since(self, time: float) -> bool:
        """Tell whether any engine is known to have made something after ``time``."""
        return any(seen.made > time for seen in self._seen.values())

    def _look(
        self, model: Model, states: Mapping[str, SignalState], view: View, now: float
    ) -> _Seen:
        before = self._seen.get(model)
        age = view.engine_stats_age.get(model)
        marks, active = _marks(states), _gauge(states, "sequences_active")
        counted = before is not None and any(
            total > before.marks.get(signal, 0.0) for signal, total in marks.items()
        )
        if active is None and age is not None and before:
            active = before.active  # the gauges of an engine that stands still are withdrawn
        made = -inf if age is None else now - age
        if before:
            made = max(made, now if counted else before.made)
            marks = {**before.marks, **marks}  # a signal may be unavailable for a while
        watched = before is not None and now - before.at < self._unwatched_after
        worked = before is not None and watched and bool(before.active and active)
        # Iterations of an idle engine prove nothing: streams may wait in front of it.
        iterated = before is not None and bool(active) and made - before.made > _SNAPSHOT
        return _Seen(
            at=now,
            marks=marks,
            moved=max(before.moved, made) if before and worked else now,
            made=made,
            active=active,
            idle_seen=active == 0 or (before is not None and before.idle_seen),
            initialised=(before is not None and before.initialised) or _initialised(states),
            silence=self._silence(
                before.silence if before else None,
                view.waiting_streams.get(model),
                moved=counted or iterated,
            ),
        )

    def _silence(
        self, before: _Silence | None, streams: WaitingStreams | None, *, moved: bool
    ) -> _Silence | None:
        """Add the time since the last snapshot of the tap, unless something moved in it.

        Time in which no stream waits does not count, and after ``stuck_after`` of it the wait
        starts anew.  The last stream to leave without a token does not end the silence: clients
        with short time-outs would otherwise hide it.
        """
        if streams is None:
            return None
        if before is None or moved:
            return _Silence(streams.at, streams.count, 0.0, streams.at)
        passed = streams.at - before.at
        seconds = before.seconds
        if before.waiting and streams.count and passed < self._unwatched_after:
            seconds += passed
        waited = streams.at if streams.count else before.waited
        if streams.at - waited > self._stuck_after:
            seconds = 0.0
        return _Silence(streams.at, streams.count, seconds, waited)

    def _follow_engines(self, info: ModelInfo, now: float) -> None:
        """End the silence of an ensemble while an engine that it may call iterates."""
        model = info.model, info.version
        seen = self._seen[model]
        engines = (one for other, one in self._seen.items() if other != model and one.active)
        if seen.silence and any(now - one.made <= seen.silence.seconds for one in engines):
            self._seen[model] = replace(seen, silence=replace(seen.silence, seconds=0.0))

    def _judge(self, seen: _Seen, states: Mapping[str, SignalState], now: float) -> Decoding:
        moves, reason = self._at_taps(seen.silence)
        if moves is not False:
            engine_moves, engine_reason = self._in_engine(seen, states, now)
            if engine_moves is False or moves is None:
                moves, reason = engine_moves, engine_reason
        return Decoding(moves, reason, True if seen.initialised else None)

    def _at_taps(self, silence: _Silence | None) -> tuple[bool | None, str]:
        if silence is None:
            return None, ""
        if not silence.waiting or silence.seconds <= self._stuck_after:
            return True, ""
        streams = "1 stream waits" if silence.waiting == 1 else f"{silence.waiting} streams wait"
        return (
            False,
            f"decoding is stuck: {streams} at the tap and no stream of this model got a token "
            f"for {silence.seconds:.0f} s",
        )

    def _in_engine(
        self, seen: _Seen, states: Mapping[str, SignalState], now: float
    ) -> tuple[bool | None, str]:
        if seen.active is None:
            why = states["sequences_active"].note if "sequences_active" in states else ""
            return None, f"decode progress is unknown: {why or _NO_GAUGE}"
        still = now - seen.moved
        if not seen.active or still <= self._stuck_after:
            return True, ""
        facts = (
            f"{seen.active:g} active and no token, iteration or finished request for {still:.0f} s"
        )
        if not seen.idle_seen:
            # Some executors write no record when they become idle: what stands still is then old.
            return None, f"{facts}, but this engine never reported that it was idle"
        return False, f"decoding is stuck: {facts}"


def _judged(view: View) -> list[tuple[ModelInfo, Mapping[str, SignalState]]]:
    """Return models with their signals: those ready and reported on, or with waiting streams."""
    states = view.by_model()
    idle = WaitingStreams(0.0, 0)
    return [
        (info, states.get(model, {}))
        for info in view.models
        if (model := (info.model, info.version))
        and ((info.ready and not info.excluded) or view.waiting_streams.get(model, idle).count > 0)
    ]


def _marks(states: Mapping[str, SignalState]) -> Marks:
    totals = {
        signal: sum(map(_count, state.samples.values()))
        for signal in _MOVING_AT_TAPS
        if (state := states.get(signal)) and state.samples
        if signal in _MOVING or state.method.startswith("wire")
    }
    requests = states["requests"].samples if "requests" in states else {}
    answered = [_count(value) for labels, value in requests.items() if ("outcome", "ok") in labels]
    return totals | ({"requests": sum(answered)} if answered else {})


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
    return made > 0 or any(
        _gauge(states, signal) is not None and states[signal].method != AT_REST
        for signal in _ENGINE_GAUGES
    )
