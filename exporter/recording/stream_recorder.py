"""What is made of the wire's events: counters and histograms by model.

What is measured, and of whom:

* ``ttft``, ``itl`` and ``itl_normalized`` of every stream, token by token as they come;
* ``max_gap`` of every stream with two chunks or more, up to where its client left;
* ``tpot`` and ``decode`` of streams, ``e2e`` of all requests, that ended well: what was cut off
  says nothing of how long the whole would have taken;
* outcomes and tokens of every request.  What came after the client had left is waste and nothing
  else: it is in no latency and no other count of tokens.

Requests of our own are left out of everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from exporter.protocol.events import Outcome, Stream
from exporter.recording.genai_recorder import GenAiRecorder
from exporter.recording.goodput import GoodputObjective, times
from exporter.recording.judgement import Judgement, evaluate_active, judge_ended, judge_first_token
from exporter.recording.label_limiter import MAX_SERIES, OTHER, LabelLimiter, SeriesBudget
from exporter.recording.model_metrics import ModelMetrics, TokenHistograms
from exporter.recording.model_registry import ModelRegistry
from exporter.recording.retries import RetryDetector
from exporter.samples import Measurement

MAX_TENANTS = 100
MAX_PROVISIONAL_TENANTS = 20
"""Tenants without any valid request so far: an invalid one takes no place among MAX_TENANTS."""
AT_ONCE = 500
"""Requests under way that are judged before other events have their turn."""
MAX_TENANT = 64
"""Characters of a tenant's name."""

FAILED = ("error", "rejected", "timeout", "disconnected")
"""Outcomes after which clients try again."""

# A name is proven by an answer of the model itself; these may come from whatever stands before it,
# or were not decided by the server at all, or are what a server says of a name it does not know.
_PROVING = ("ok", "error", "timeout")
_NO_PROOF = (
    *("408", "502", "503", "504"),
    *("deadline_exceeded", "in_band", "reset", "truncated", "unavailable"),
)


class ReadLag(Protocol):
    """Whether the bytes that are fed now were read late."""

    @property
    def late(self) -> bool:
        """Return whether they were."""


@dataclass(frozen=True, slots=True)
class _OnTime:
    late: bool = False


@dataclass(slots=True)
class _Live:
    """A request under way.

    ``pace`` is where its tokens go: to its model's or, once its client may have left, apart.
    ``left`` is what the stream was like then.  ``blocked`` says that its client does not read.
    ``seen_until`` is up to when its tap has seen everything, and ``late`` says that the last chunk
    was read late.
    """

    model: ModelMetrics
    pace: TokenHistograms | None
    left: Stream | None = None
    blocked: bool = False
    late: bool = False
    tenant: str = ""
    seen_until: Callable[[], float] | None = None
    judgement: Judgement = field(default_factory=Judgement)


class StreamRecorder:
    """The listener of the observers of a tap; times are in seconds.

    ``thresholds`` are SLO thresholds by signal.  ``tenants`` are those that selectors name, by
    model; an empty model is every one.  ``expected`` are names of models that the server
    is known to have; a request that names none is for the only one.  Requests with the id ``probe``
    are our own.  ``lossy`` counts streams of which bytes were not seen, ``passed`` what was left
    out, by reason.  ``genai`` are the bucket boundaries of the profile that is pushed over OTLP, by
    signal.
    """

    def __init__(
        self,
        thresholds: Mapping[str, Iterable[float]],
        goals: Iterable[GoodputObjective] = (),
        tenants: Mapping[str, Sequence[str]] | None = None,
        *,
        expected: Collection[str] = (),
        probe: str = "",
        genai: Mapping[str, Sequence[float]] | None = None,
        max_series: int = MAX_SERIES,
    ) -> None:
        self.genai = GenAiRecorder(genai or {})
        self.lossy = 0
        self.skips: Counter[str] = Counter()
        goals = tuple(goals)
        selected = dict(tenants or {})
        self._tenants = LabelLimiter(MAX_TENANTS, MAX_PROVISIONAL_TENANTS)
        for tenant in (one for names in selected.values() for one in names):
            self._tenants.reserve(tenant)
        self._budget = SeriesBudget(max_series)
        self._models = ModelRegistry(
            lambda name, version: ModelMetrics(
                name,
                version,
                thresholds,
                goals,
                self._budget,
                (*selected.get("", ()), *selected.get(name, ())),
            ),
            expected,
            self._budget,
        )
        self.seen_until: Callable[[], float] | None = None
        self.lag: ReadLag = _OnTime()
        self.late_gaps = 0
        self._probe = probe
        self._live: dict[Stream, _Live] = {}
        self._retries = RetryDetector()

    def for_another_tap(self) -> StreamRecorder:
        """Return a listener for another tap: with counts of its own, only.

        Set its ``seen_until`` where the tap sees bytes later than they pass, and the ``lag`` of a
        tap whose event loop may be late: ``late_gaps`` counts gaps that are left out for that.
        """
        other = copy(self)
        other.lossy, other.skips, other.late_gaps = 0, Counter(), 0
        return other

    def evaluate_active(self, now: float) -> Iterator[None]:
        """Count requests under way that have crossed a threshold; stops after every few of them.

        Events may come in between.
        """
        for number, (stream, live) in enumerate(tuple(self._live.items()), 1):
            if stream in self._live:
                until = min(now, live.seen_until()) if live.seen_until else now
                there = live.left or stream
                if live.left:
                    until = min(until, live.left.closing_at)
                evaluate_active(live.model, there, live.judgement, until, live.tenant)
            if number % AT_ONCE == 0:
                yield

    @property
    def live(self) -> int:
        """How many requests are under way at all taps."""
        return len(self._live)

    def waiting(self) -> Mapping[tuple[str, str], int]:
        """Return how many streams of each model wait for a token, by name and version.

        Left out are streams whose client may have left or does not read, those that may have ended
        unseen, and begun ones of several choices, of which only one is timed.
        """
        return Counter(
            (live.model.name, live.model.version)
            for stream, live in self._live.items()
            if stream.streaming and live.left is None and not live.blocked and not stream.opaque
            if not (stream.chunks and stream.silent_end)
            if stream.choices == 1 or not (stream.chunks or stream.other_chunks)
        )

    @property
    def limited(self) -> Mapping[str, int]:
        """How many requests are counted under ``other``, by label."""
        return self._budget.limited

    def learn_models(self, known: Collection[str], reported: Collection[str] = ()) -> None:
        """Take the models that the server lists; ``reported`` ones begin at zero now."""
        self._models.learn(known, reported)

    def measurements(self, *, changed_only: bool = False) -> Iterator[tuple[Measurement, ...]]:
        """Yield everything so far, model by model; events may come in between.

        With ``changed_only`` models are left out to which nothing happened since they were last
        yielded.
        """
        for model in self._models.reported():
            if model.touched or model.live or not changed_only:
                # One that has live requests may yet change, and so may it when they are gone.
                model.touched = model.live > 0
                yield tuple(model.measurements())

    # Events

    def started(self, stream: Stream, time: float) -> None:
        """Begin to measure a request."""
        if self._probe and stream.request_id == self._probe:
            return
        stream.model = stream.model or self._models.only()
        model = self._models.requested(stream.model, stream.version, stream.endpoint)
        if model is None:
            self.skips["models"] += 1
            return
        model.live += 1
        model.touched = True
        tenant = model.met(self._tenant(stream.tenant, self._tenants.begin))
        self._live[stream] = _Live(
            model,
            model.pace if stream.streaming else None,
            tenant=tenant,
            seen_until=self.seen_until,
        )
        if self._retries.suspected(stream.prompt, time):
            model.count("suspected_retries")

    def chunk(self, stream: Stream, time: float, tokens: int) -> None:
        """Measure a piece of a stream's answer."""
        live = self._live.get(stream)
        if live is None:
            return
        pace = live.pace
        late = self.lag.late
        if not stream.chunks or pace is None:
            self._first(stream, live, time)
            stream.first_tokens = tokens
        elif late or live.late:
            # Chunks that are read late come in one: nothing is known of the gaps around each.
            self.late_gaps += 1
            live.judgement.pending = frozenset()
        else:
            gap = time - stream.last
            pace.itl.observe(gap)
            if live.judgement.pending and live.left is None:
                live.judgement.token_came(live.model)
            if gap > stream.max_gap:
                stream.max_gap = gap
                live.judgement.note_gap(live.model, stream.last, gap)
            if tokens and stream.choices == 1:
                pace.itl_normalized.observe(gap / tokens, tokens)
        live.late = late
        stream.last = time
        stream.chunks += 1
        stream.tokens += tokens or 1

    def closing(self, stream: Stream, time: float) -> None:
        """Keep apart what comes from now on, until it is known whom it was for."""
        live = self._live.get(stream)
        if live is None:
            return
        _rejoin(stream, live)
        stream.closing_at = time
        live.left = copy(stream)
        live.pace = live.pace and live.pace.empty()
        self._retries.failed(stream.prompt, time)

    def ended(
        self, stream: Stream, time: float, outcome: Outcome, reason: str, stopped: float | None
    ) -> None:
        """Count a request that is over."""
        live = self._live.get(stream)
        if live is None:
            return
        if outcome in _PROVING and reason.lower() not in _NO_PROOF:
            self._answered(stream, live)
        self._remember(stream, live, outcome, time)
        model, delivered, end = self._over(stream, live), stream, time
        confirmed = outcome != "invalid"
        tenant = self._tenant(stream.tenant, partial(self._tenants.admit, confirmed=confirmed))
        if outcome == "disconnected":
            delivered = live.left or stream
            end = time if live.left is None else live.left.closing_at
            _count_disconnect(model, delivered, end, tenant)
            if stopped is not None:
                model.observe("disconnect_release", max(0.0, stopped - end))
            if (wasted := _chunk_tokens(stream) - _chunk_tokens(delivered)) > 0:
                model.count("wasted_tokens", amount=wasted)
        else:
            _rejoin(stream, live)
        tenant = model.met(tenant)
        if tenant == OTHER:
            self._budget.limited["tenant"] += 1
        model.touched = True
        model.count("requests", {"outcome": outcome}, tenant=tenant)
        if outcome != "ok":
            failure = {"outcome": outcome, "reason": model.reason(reason)}
            model.count("request_failures", failure)
        else:
            model.observe("e2e", max(0.0, end - stream.arrived))
        if outcome == "ok" or stream.stages:
            model.staged(stream.stages)
        if stream.streaming:
            _count_stream(model, delivered, outcome, tenant)
        _count_tokens(model, delivered, outcome, tenant)
        tpot = _tpot(delivered) if outcome == "ok" else None
        if tpot and not _is_tpot_exact(delivered) and any("tpot" in g.clauses for g in model.goals):
            model.not_told("goodput")
        known = times(delivered, end, tpot)
        judge_ended(model, delivered, live.judgement, end, outcome, tenant, known)
        self.genai.ended(model, delivered, end, outcome, tpot)

    def lost(self, stream: Stream) -> None:
        """Forget a stream of which something was not seen."""
        self.lossy += 1
        live = self._live.get(stream)
        if live:
            self._over(stream, live)

    def blocked(self, stream: Stream) -> None:
        """Note that a client does not read; `backpressure` says when it reads again."""
        live = self._live.get(stream)
        if live:
            live.blocked = True

    def backpressure(self, stream: Stream, seconds: float) -> None:
        """Count for how long a client did not read."""
        live = self._live.get(stream)
        if live:
            live.blocked = False
            live.model.count("client_backpressure", amount=seconds)

    def skipped(self, reason: str) -> None:
        """Count what was not understood."""
        self.skips[reason] += 1

    # What they mean

    def _first(self, stream: Stream, live: _Live, time: float) -> None:
        self._answered(stream, live)
        live.pace = live.pace or live.model.pace
        live.pace.ttft.observe(max(0.0, time - stream.arrived))
        stream.first = time
        if live.left is None:
            judge_first_token(live.model, stream, live.judgement)

    def _answered(self, stream: Stream, live: _Live) -> None:
        """Take in that the server knows the model, and perhaps only now tells its version."""
        model = self._models.answered(live.model, stream.model, stream.version, stream.endpoint)
        if model is not live.model:
            live.model.live -= 1
            model.live += 1
            live.model = model
            if live.left is None and live.pace:
                live.pace = model.pace

    def _over(self, stream: Stream, live: _Live) -> ModelMetrics:
        del self._live[stream]
        live.model.live -= 1
        return live.model

    def _remember(self, stream: Stream, live: _Live, outcome: Outcome, time: float) -> None:
        """Keep in mind what may be tried again; clients that left may have done so already."""
        if outcome not in FAILED:
            if live.left:
                self._retries.succeeded(stream.prompt)
        elif live.left is None or outcome != "disconnected":
            self._retries.failed(stream.prompt, time)

    def _tenant(self, name: str, limited: Callable[[str], str]) -> str:
        """Return a tenant as a label."""
        if not name:
            return name
        return limited(name) if len(name) <= MAX_TENANT and name.isprintable() else OTHER


def _rejoin(stream: Stream, live: _Live) -> None:
    """Count what came after the client had closed its half as all the rest."""
    if live.left is not None and live.pace:
        live.model.pace.add(live.pace)
        live.pace = live.model.pace
        if live.left.chunks < stream.chunks:
            live.judgement.token_came(live.model)
    live.left = None


def _phase(stream: Stream, outcome: Outcome) -> str:
    if outcome == "ok":
        return "complete"
    return "mid_stream" if stream.chunks or stream.unread else "before_first_token"


def _count_stream(model: ModelMetrics, stream: Stream, outcome: Outcome, tenant: str) -> None:
    phase = _phase(stream, outcome)
    model.count("streams", {"outcome": outcome, "phase": phase}, tenant=tenant)
    if phase == "before_first_token":
        model.count("requests_without_first_token", {"outcome": outcome})
    if stream.chunks < 2 or stream.opaque:
        return
    model.observe("max_gap", stream.max_gap)
    if outcome != "ok":
        return
    model.observe("decode", stream.last - stream.first)
    tpot = _tpot(stream)
    if tpot is not None:
        if not _is_tpot_exact(stream):
            model.not_told("tpot")
        model.observe("tpot", tpot)


def _count_disconnect(model: ModelMetrics, stream: Stream, left: float, tenant: str) -> None:
    """Count that a client left; ``stream`` is what it was like then."""
    if not stream.streaming:
        return
    model.count("disconnects", {"phase": _phase(stream, "disconnected")}, tenant=tenant)
    model.observe("disconnect_age", max(0.0, left - stream.arrived))
    tokens = _output_tokens(stream)
    if tokens:
        if not stream.counted:
            model.not_told("partial_tokens")
        model.count("partial_tokens", amount=tokens)


def _count_tokens(model: ModelMetrics, stream: Stream, outcome: Outcome, tenant: str) -> None:
    tokens = _output_tokens(stream)
    if not stream.counted and (tokens or outcome == "ok"):
        model.not_told("output_tokens")
        model.used("output_tokens")
    if tokens:
        model.count("output_tokens", amount=tokens, tenant=tenant)
    for signal, told in (
        ("input_tokens", stream.input_tokens),
        ("cached_input_tokens", stream.cached_tokens),
    ):
        if told is not None:
            model.count(signal, amount=told, tenant=tenant)
        elif outcome == "ok":
            model.not_told(signal)
            model.used(signal)


def _output_tokens(stream: Stream) -> int:
    """Return how many tokens the server says there are, else one for each token-bearing chunk."""
    if stream.counted and stream.output_tokens is not None:
        return stream.output_tokens
    return _chunk_tokens(stream)


def _chunk_tokens(stream: Stream) -> int:
    """Return how many tokens the chunks had, those of other answers to the request included."""
    return stream.tokens + stream.other_chunks


def _tpot(stream: Stream) -> float | None:
    """Return seconds per token after the first chunk; None where the wire does not show it.

    That is so of several answers to a request, whose tokens come as a sum, and of one that came in
    a single chunk.
    """
    if not stream.streaming or not stream.chunks or stream.choices > 1:
        return None
    tokens = _output_tokens(stream)
    if stream.chunks == 1 and tokens > 2:
        return None
    return (stream.last - stream.first) / max(1, tokens - max(1, stream.first_tokens))


def _is_tpot_exact(stream: Stream) -> bool:
    """Return whether the tokens of the first chunk are known, to within 5 % of all or one token.

    A first chunk that holds many tokens (a parser of tool calls withheld them, speculative
    decoding) shows only with continuous usage.  One token without a chunk is the end of sequence.
    """
    if not stream.counted:
        return False
    tokens = _output_tokens(stream)
    return stream.first_tokens > 0 or tokens - stream.chunks <= max(1, tokens // 20)
