"""Record the events of observers as counters and histograms by model.

Recorded are:

* ``ttft``, ``itl`` and ``itl_normalized`` of every stream, token by token;
* ``max_gap`` of every stream with two chunks or more, up to the client disconnect;
* ``tpot`` and ``decode`` of streams, and ``e2e`` of all requests, with the outcome ``ok``: a
  truncated response does not show the time of the complete one;
* outcomes and tokens of every request.  Tokens after a client disconnect count as wasted, and
  neither in a latency nor in any other token count.

The sidecar's own probes are not recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from exporter.protocol.events import Stream
from exporter.recording.active_request import ActiveRequest
from exporter.recording.genai_recorder import GenAiRecorder
from exporter.recording.goodput import GoodputObjective, times
from exporter.recording.label_limiter import MAX_SERIES, OTHER, LabelLimiter, SeriesBudget
from exporter.recording.model_metrics import ModelMetrics
from exporter.recording.model_registry import CLASS_SERIES, MODEL_SERIES, ModelRegistry
from exporter.recording.request_counts import (
    chunk_tokens,
    count_disconnect,
    count_kv_cache,
    count_stream,
    count_tokens,
    is_tpot_exact,
    observe_lengths,
    seconds_per_token,
)
from exporter.recording.retries import RetryDetector
from exporter.recording.slo_evaluation import (
    evaluate_active,
    evaluate_ended,
    evaluate_first_token,
)
from exporter.samples import Measurement
from slos.outcomes import FAILURES, Outcome
from slos.prompt_classes import PromptClasses

MAX_TENANTS = 100
MAX_PROVISIONAL_TENANTS = 20
"""Tenants without a valid request so far: invalid requests do not count against MAX_TENANTS."""
EVALUATION_BATCH = 50
"""Active requests evaluated before the event loop runs other tasks."""
MAX_TENANT_LENGTH = 64
"""The limit of characters in a tenant's name."""

RETRIED = frozenset((*FAILURES, "quota", "client_disconnected"))
"""Outcomes after which clients retry."""

# Only a response of the model itself confirms its name.  Other outcomes and reasons may come from a
# gateway or from the client, or are a server's response to an unknown name.
_CONFIRMING = ("ok", "error")
_NOT_CONFIRMING = (
    *("502", "503", "unavailable", "in_band", "closed", "reset"),
    *("no_endpoints", "router_error"),
)
# Reasons of invalid requests for a model that does not exist, or is not loaded.
_NOT_FOUND = ("404", "not_found")


class ReadLag(Protocol):
    """Detects bytes that were read late, because the event loop was busy."""

    @property
    def late(self) -> bool:
        """Whether the current bytes were read late."""


@dataclass(frozen=True, slots=True)
class _OnTime:
    late: bool = False


class StreamRecorder:
    """The listener of a tap's observers; times are in seconds.

    * ``thresholds``: SLO thresholds by signal.
    * ``tenants``: tenants that selectors name, by model; an empty model matches every model.
    * ``expected``: names of models that the server has; a request without a model name is for the
      only model.
    * ``probe``: the request id of the sidecar's own probes.
    * ``genai``: bucket boundaries of the profile pushed over OTLP, by signal.
    * ``prompt_classes``: upper bounds of the classes of prompts, in tokens.

    ``lossy`` counts streams with missing bytes, ``skips`` skipped requests and connections by
    reason.
    """

    def __init__(
        self,
        thresholds: Mapping[str, Iterable[float]],
        objectives: Iterable[GoodputObjective] = (),
        tenants: Mapping[str, Sequence[str]] | None = None,
        *,
        expected: Collection[str] = (),
        probe: str = "",
        genai: Mapping[str, Sequence[float]] | None = None,
        prompt_classes: Iterable[int] = (),
        max_series: int = MAX_SERIES,
    ) -> None:
        classes = PromptClasses.of(prompt_classes)
        self.genai = GenAiRecorder(genai or {})
        self.lossy = 0
        self.skips: Counter[str] = Counter()
        objectives = tuple(objectives)
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
                objectives,
                self._budget,
                (*selected.get("", ()), *selected.get(name, ())),
                classes,
            ),
            expected,
            self._budget,
            MODEL_SERIES + CLASS_SERIES * len(classes.labels),
        )
        self.seen_until: Callable[[], float] | None = None
        self.lag: ReadLag = _OnTime()
        self.late_gaps = 0
        self._probe = probe
        self._live: dict[Stream, ActiveRequest] = {}
        self._retries = RetryDetector()

    def for_another_tap(self) -> StreamRecorder:
        """Return a listener for another tap, with its own counts of losses and skips.

        Set ``seen_until`` for a tap that sees bytes with a delay, and ``lag`` for a tap whose event
        loop may be late; ``late_gaps`` counts the gaps that are not recorded because of that.
        """
        other = copy(self)
        other.lossy, other.skips, other.late_gaps = 0, Counter(), 0
        return other

    def evaluate_active(self, now: float) -> Iterator[None]:
        """Count active requests that have exceeded a threshold; yield after each EVALUATION_BATCH.

        Events may occur in between.
        """
        for number, (stream, live) in enumerate(tuple(self._live.items()), 1):
            if stream in self._live:
                until = min(now, live.seen_until()) if live.seen_until else now
                stream_then = live.at_fin or stream
                if live.at_fin:
                    until = min(until, live.at_fin.closing_at)
                evaluate_active(live.model, stream_then, live.evaluation, until, live.tenant)
            if number % EVALUATION_BATCH == 0:
                yield

    @property
    def live(self) -> int:
        """The number of active requests at all taps."""
        return len(self._live)

    def waiting(self) -> Mapping[tuple[str, str], int]:
        """Return the number of streams that wait for a token, by model name and version.

        Streams are not counted if their client may have disconnected or does not read, if they may
        have ended silently, or if they have begun and have several choices, of which only one is
        timed.
        """
        return Counter(
            (live.model.name, live.model.version)
            for stream, live in self._live.items()
            if stream.streaming and live.at_fin is None and not live.blocked and not stream.opaque
            if not (stream.chunks and stream.silent_end)
            if stream.choices == 1 or not (stream.chunks or stream.other_chunks)
        )

    @property
    def limited(self) -> Mapping[str, int]:
        """The number of requests counted under ``other``, by label."""
        return self._budget.limited

    def learn_models(self, known: Collection[str], reported: Collection[str] = ()) -> None:
        """Set the models that the server lists; series of ``reported`` ones begin at zero now."""
        self._models.learn(known, reported)

    def measurements(self, *, changed_only: bool = False) -> Iterator[tuple[Measurement, ...]]:
        """Yield all measurements so far, model by model; events may occur in between.

        With ``changed_only``, only models that changed since they were last yielded.
        """
        for model in self._models.reported():
            if model.changed or model.live or not changed_only:
                # A model with active requests changes again at the latest when they end.
                model.changed = model.live > 0
                yield tuple(model.measurements())

    # Events

    def started(self, stream: Stream, time: float) -> None:
        """Begin to record a request."""
        if self._probe and stream.request_id == self._probe:
            return
        stream.model = stream.model or self._models.only()
        model = self._models.requested(stream.model, stream.version, stream.endpoint)
        if model is None:
            self.skips["models"] += 1
            return
        model.live += 1
        model.changed = True
        tenant = model.begin_tenant(self._tenant(stream.tenant, self._tenants.begin))
        self._live[stream] = ActiveRequest(
            model,
            model.token_histograms() if stream.streaming else None,
            tenant=tenant,
            seen_until=self.seen_until,
        )
        if self._retries.suspected(stream.prompt, time):
            model.count("suspected_retries")

    def chunk(self, stream: Stream, time: float, tokens: int) -> None:
        """Record a chunk of a stream."""
        live = self._live.get(stream)
        if live is None:
            return
        histograms = live.histograms
        late = self.lag.late
        if not stream.chunks or histograms is None:
            self._first(stream, live, time)
            stream.first_tokens = tokens
        elif late or live.late:
            # Chunks that are read late arrive together: the gaps around them are unknown.
            self.late_gaps += 1
            live.evaluation.pending = frozenset()
        else:
            gap = time - stream.last
            histograms.itl.observe(gap)
            if live.evaluation.pending and live.at_fin is None:
                live.evaluation.resolve_pending_gap(live.model)
            if gap > stream.max_gap:
                stream.max_gap = gap
                live.evaluation.record_gap(live.model, stream.last, gap)
            if tokens and stream.choices == 1:
                histograms.itl_normalized.observe(gap / tokens, tokens)
        live.late = late
        stream.last = time
        stream.chunks += 1
        stream.tokens += tokens or 1

    def closing(self, stream: Stream, time: float) -> None:
        """Record later chunks separately, until the outcome shows whether the client got them."""
        live = self._live.get(stream)
        if live is None:
            return
        live.merge_after_fin(stream)
        stream.closing_at = time
        live.at_fin = copy(stream)
        live.histograms = live.histograms and live.histograms.empty()
        self._retries.failed(stream.prompt, time)

    def ended(
        self, stream: Stream, time: float, outcome: Outcome, reason: str, stopped: float | None
    ) -> None:
        """Count an ended request."""
        live = self._live.get(stream)
        if live is None:
            return
        if outcome in _CONFIRMING and reason.lower() not in _NOT_CONFIRMING:
            self._confirm_model(stream, live)
        if outcome == "invalid" and self._is_unavailable(stream, reason):
            outcome = "error"
        self._record_failure(stream, live, outcome, time)
        model, delivered, end = self._remove(stream, live), stream, time
        released = time
        confirmed = outcome != "invalid"
        tenant = self._tenant(stream.tenant, partial(self._tenants.admit, confirmed=confirmed))
        tenant = model.begin_tenant(tenant)
        if outcome == "client_disconnected":
            delivered = live.at_fin or stream
            end = time if live.at_fin is None else live.at_fin.closing_at
            released = end if stopped is None else stopped
            count_disconnect(model, delivered, end, tenant)
            if stopped is not None:
                model.observe("disconnect_release", max(0.0, stopped - end))
            if (wasted := chunk_tokens(stream) - chunk_tokens(delivered)) > 0:
                model.count("wasted_tokens", amount=wasted, tenant=tenant)
        else:
            live.merge_after_fin(stream)
        if tenant == OTHER:
            self._budget.limited["tenant"] += 1
        model.changed = True
        prompt_class = live.evaluation.classify(model, stream)
        model.count("requests", {"outcome": outcome}, tenant=tenant, prompt_class=prompt_class)
        if outcome != "ok":
            failure = {"outcome": outcome, "reason": model.reason_label(reason)}
            model.count("request_failures", failure)
        else:
            model.observe("e2e", max(0.0, end - stream.arrived))
        if outcome == "ok" or stream.stages:
            model.observe_stages(stream.stages, prompt_class)
        if stream.streaming:
            count_stream(model, delivered, outcome, tenant)
        count_tokens(model, delivered, outcome, tenant)
        count_kv_cache(model, stream, released, outcome, tenant)
        observe_lengths(model, delivered, outcome)
        tpot = seconds_per_token(delivered) if outcome == "ok" else None
        if (
            tpot
            and not is_tpot_exact(delivered)
            and any("tpot" in g.clauses for g in model.objectives)
        ):
            model.mark_estimated("goodput")
        known = times(delivered, end, tpot)
        evaluate_ended(model, delivered, live.evaluation, end, outcome, tenant, known)
        self.genai.ended(model, delivered, end, outcome, tpot)

    def _is_unavailable(self, stream: Stream, reason: str) -> bool:
        """Return whether a server has no model of an expected name: the request was right."""
        named = self._models.expects(stream.model) and not stream.version
        return named and reason.lower() in _NOT_FOUND

    def lost(self, stream: Stream) -> None:
        """Discard a stream with missing bytes."""
        self.lossy += 1
        live = self._live.get(stream)
        if live:
            self._remove(stream, live)

    def blocked(self, stream: Stream) -> None:
        """Mark a client as not reading; ``backpressure`` follows when it reads again."""
        live = self._live.get(stream)
        if live:
            live.blocked = True

    def backpressure(self, stream: Stream, seconds: float) -> None:
        """Record the seconds for which a client did not read."""
        live = self._live.get(stream)
        if live:
            live.blocked = False
            live.model.count("client_backpressure", amount=seconds)

    def skipped(self, reason: str) -> None:
        """Count a skipped request or connection."""
        self.skips[reason] += 1

    # State of active requests

    def _first(self, stream: Stream, live: ActiveRequest, time: float) -> None:
        self._confirm_model(stream, live)
        prompt_class = live.evaluation.classify(live.model, stream)
        if live.at_fin is None or live.histograms is None:
            live.histograms = live.model.token_histograms(prompt_class)
        live.histograms.ttft.observe(max(0.0, time - stream.arrived))
        stream.first = time
        if live.at_fin is None:
            evaluate_first_token(live.model, stream, live.evaluation)

    def _confirm_model(self, stream: Stream, live: ActiveRequest) -> None:
        """Confirm the model, whose version may be known only now."""
        model = self._models.confirm(live.model, stream.model, stream.version, stream.endpoint)
        if model is not live.model:
            live.model.live -= 1
            model.live += 1
            live.model = model
            if live.at_fin is None and live.histograms:
                live.histograms = model.token_histograms(live.evaluation.prompt_class or "")

    def _remove(self, stream: Stream, live: ActiveRequest) -> ModelMetrics:
        del self._live[stream]
        live.model.live -= 1
        return live.model

    def _record_failure(
        self, stream: Stream, live: ActiveRequest, outcome: Outcome, time: float
    ) -> None:
        """Record a failure for the detection of retries; a disconnect is recorded already."""
        if outcome not in RETRIED:
            if live.at_fin:
                self._retries.succeeded(stream.prompt)
        elif live.at_fin is None or outcome != "client_disconnected":
            self._retries.failed(stream.prompt, time)

    def _tenant(self, name: str, limited: Callable[[str], str]) -> str:
        """Return a tenant as a label."""
        if not name:
            return name
        return limited(name) if len(name) <= MAX_TENANT_LENGTH and name.isprintable() else OTHER
