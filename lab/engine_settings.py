"""Settings of the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Policy = Literal["guaranteed_no_evict", "max_utilization"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Capacity, scheduling policy and speed of the engine; times are in seconds.

    An iteration takes ``step_seconds``, plus ``sequence_seconds`` for every sequence that decodes
    in it, plus ``context_token_seconds`` for every prompt token computed in it, times a log-normal
    factor of spread ``jitter``.  ``max_batch_size`` sequences and ``max_num_tokens`` tokens fit
    into one; ``chunked_context`` splits prompts that do not.  The policies are TensorRT-LLM's:
    ``guaranteed_no_evict`` starts a sequence only if its KV cache fits up to its last token,
    ``max_utilization`` starts it as soon as it fits now and pauses the newest when it gets tight.

    With ``draft_tokens`` the engine decodes speculatively: an iteration gives a decoding sequence
    one token and the accepted ones of ``draft_tokens`` drafts; ``acceptance`` is the probability of
    each draft after an accepted one.  ``micro_batches`` is the number of pipeline stages: the
    iterations alternate between that many batches, a sequence advances once per round, and
    ``max_batch_size`` and ``max_num_tokens`` limit each batch.

    ``faults_file`` is read while the engine runs (see :mod:`lab.engine_faults`).
    """

    max_batch_size: int = 16
    max_num_active_requests: int = 32
    max_num_tokens: int = 2048
    chunked_context: bool = False
    kv_blocks: int = 160
    tokens_per_block: int = 32
    policy: Policy = "guaranteed_no_evict"
    honour_cancel: bool = True
    draft_tokens: int = 0
    acceptance: float = 0.7
    micro_batches: int = 1
    step_seconds: float = 0.020
    sequence_seconds: float = 0.001
    context_token_seconds: float = 0.0003
    jitter: float = 0.05
    seed: int = 0
    faults_file: str = ""

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"policy {self.policy!r} is none of {', '.join(get_args(Policy))}")
        if min(self.max_batch_size, self.tokens_per_block, self.kv_blocks) < 1:
            raise ValueError("max_batch_size, tokens_per_block and kv_blocks must be at least 1")
        if self.max_num_active_requests < self.max_batch_size:
            raise ValueError("max_num_active_requests must be at least max_batch_size")
        if self.draft_tokens < 0 or self.micro_batches < 1 or not 0 <= self.acceptance <= 1:
            raise ValueError(
                "draft_tokens must not be negative, micro_batches at least 1, acceptance 0 to 1"
            )
        decoding = self.max_batch_size * (1 + self.draft_tokens)
        if self.max_num_tokens < decoding + self.tokens_per_block:
            least = "max_batch_size" + " times 1 + draft_tokens" * bool(self.draft_tokens)
            raise ValueError(f"max_num_tokens must exceed {least} by tokens_per_block")
        speeds = (self.step_seconds, self.sequence_seconds, self.context_token_seconds, self.jitter)
        if min(speeds) < 0 or self.step_seconds == 0:
            raise ValueError("step_seconds must be positive, the other speeds not negative")
