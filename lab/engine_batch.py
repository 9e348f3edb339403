"""Sequences and batches of the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass

from lab.engine_events import EngineRequest, RequestMetrics
from lab.engine_faults import Answers
from lab.kvcache import Allocation


@dataclass(slots=True)
class EngineSequence:
    """State of a request in the engine; ``keys`` are the content keys of its prompt's full blocks.

    ``context_left`` prompt tokens are not computed yet; ``advances`` counts decoding iterations.
    """

    id: int
    request: EngineRequest
    arrived: float
    keys: list[int]
    answers: Answers = "normal"
    allocation: Allocation | None = None
    context_left: int = 0
    generated: int = 0
    cancelled: bool = False
    micro_batch: int | None = None
    cached: int = 0
    blocks: tuple[int, ...] = (0, 0, 0, 0)
    advances: int = 0
    drafted: int = 0
    accepted: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens in the KV cache after the next iteration."""
        return len(self.request.prompt) + self.generated

    @property
    def tokens_at_end(self) -> int:
        """Tokens in the KV cache after the last iteration: the last token needs no cache."""
        return len(self.request.prompt) + self.request.max_tokens - 1

    @property
    def metrics(self) -> RequestMetrics:
        """The metrics of the request so far."""
        total, new, reused, missed = self.blocks
        return RequestMetrics(
            arrival_time=self.arrived,
            first_scheduled_time=self.first_scheduled,
            first_token_time=self.first_token,
            last_token_time=self.last_token,
            first_iter=self.first_iteration,
            last_iter=self.last_iteration,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached,
            output_tokens=self.generated,
            decoding_iterations=self.advances,
            num_total_allocated_blocks=total,
            num_new_allocated_blocks=new,
            num_reused_blocks=reused,
            num_missed_blocks=missed,
            total_draft_tokens=self.drafted,
            total_accepted_draft_tokens=self.accepted,
        )


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Numbers of tokens drafted for a sequence, and of those that will be accepted."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """One iteration: decoding sequences, prompt tokens to compute, paused sequences, drafts.

    ``grown`` is the number of KV blocks allocated for decoding.
    """

    generation: list[EngineSequence]
    context: list[tuple[EngineSequence, int]]
    paused: list[EngineSequence]
    drafts: dict[int, DraftCounts]
    grown: int
    iteration: int

    def __len__(self) -> int:
        return len(self.generation) + len(self.context)

    @property
    def context_tokens(self) -> int:
        """Prompt tokens computed in this iteration."""
        return sum(size for _, size in self.context)
