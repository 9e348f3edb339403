"""Requests to the simulated engine, and the events and metrics that it returns for them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

from lab.engine_faults import Answers

FinishReason = Literal["length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to the engine: prompt tokens, and the number of tokens to generate.

    With ``fail_after`` the engine fails the request after that number of generated tokens; 0 fails
    it before the first.
    """

    prompt: tuple[Hashable, ...]
    max_tokens: int
    fail_after: int | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Metrics of a request (types.h, RequestPerfMetrics); times are on the caller's clock.

    Times and iterations that the request did not reach are None.  New blocks were allocated without
    an eviction; reused and missed blocks are those of the prompt.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    first_iter: int | None
    last_iter: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    decoding_iterations: int
    num_total_allocated_blocks: int
    num_new_allocated_blocks: int
    num_reused_blocks: int
    num_missed_blocks: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int

    def since(self, epoch: float) -> RequestMetrics:
        """Return the metrics with times relative to ``epoch``."""
        times = {name: getattr(self, name) for name in TIMES}
        return replace(self, **{name: at - epoch for name, at in times.items() if at is not None})


TIMES = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
"""The fields of :class:`RequestMetrics` that are times, in chronological order."""


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """A token of a request, its end, or both: the last token ends a request of full length.

    ``time`` is the caller's clock at the step.  ``index`` counts the request's tokens from 0 and is
    None for an end without a token.  ``more`` is true if the same step has another event of this
    request.  ``metrics`` come with the end.  ``answers`` decides the text of the token.
    """

    request_id: int
    time: float
    index: int | None = None
    finish_reason: FinishReason | None = None
    more: bool = False
    metrics: RequestMetrics | None = None
    answers: Answers = "normal"

    @property
    def text(self) -> str:
        """The token as text: its number in a normal answer."""
        if self.index is None or self.answers == "empty":
            return ""
        return f"token{self.index} " if self.answers == "normal" else "\N{REPLACEMENT CHARACTER} "

    @property
    def final(self) -> bool:
        """Whether this is the request's last event."""
        return self.finish_reason is not None
