"""Settings of a load test: endpoint, work, load levels and the measured window."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from promql.client_config import DIRECT, HttpClientConfig

ApiName = Literal["chat", "completions", "generate", "grpc"]
LoadKind = Literal["concurrency", "rate"]


class UnsupportedModelError(ValueError):
    """The model cannot be tested; the message has the reason and the fix."""


@dataclass(frozen=True, slots=True)
class LoadEndpoint:
    """A server: its URL without a trailing slash, API, model, and how to reach it."""

    url: str
    api: ApiName
    model: str
    http: HttpClientConfig = DIRECT


@dataclass(frozen=True, slots=True)
class PromptClass:
    """A share of the requests, by the length of their prompts in words of about one token."""

    words: int
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The name of the class: its length."""
        return str(self.words)


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A constant load: concurrent requests of a closed loop, or requests/s of an open loop."""

    kind: LoadKind
    value: float

    def __str__(self) -> str:
        """Return kind and value, as in ``concurrency 8`` and ``rate 2.5/s``."""
        return f"{self.kind} {self.value:g}{'/s' if self.kind == 'rate' else ''}"


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of each request, and the measured window; times in seconds.

    Every request generates ``output_tokens``: ``ignore_eos``, minimum = maximum.  The share
    ``cancelled`` of the requests disconnects in the middle of its stream.  ``extra`` are further
    members of the request body.

    The load lasts for ``warm_up``, ``duration`` and ``cool_down``.  Requests that are scheduled in
    ``duration`` are measured.  A request that takes longer than ``timeout`` fails.  At most
    ``max_in_flight`` requests of an open loop are in flight.  ``seed`` determines prompts, arrivals
    and cancellations.
    """

    prompts: tuple[PromptClass, ...] = (PromptClass(512),)
    output_tokens: int = 128
    cancelled: float = 0.0
    extra: Mapping[str, object] = field(default_factory=dict)
    warm_up: float = 5.0
    duration: float = 30.0
    cool_down: float = 2.0
    timeout: float = 60.0
    max_in_flight: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The work of one request; it disconnects after ``cancel_after`` chunks unless that is None."""

    number: int
    prompt: PromptClass
    text: str = field(repr=False)
    output_tokens: int
    cancel_after: int | None = None


# Words that are one token each in the usual vocabularies.
_VOCABULARY = (
    "the of and to in is for on that by this with you it not or be are from at as your all have "
    "new more an was we will home can us about if page my has free but our one other do no time "
    "they site he up may what which their news out use any there see only so his when here"
)
_WORDS = _VOCABULARY.split()


def plan_request(work: Workload, number: int) -> RequestPlan:
    """Return the request of a number: always the same one for the same seed.

    Prompts have random words, so that no prefix cache has them.
    """
    pick = random.Random(f"{work.seed}/{number}")
    [prompt] = pick.choices(work.prompts, [each.weight for each in work.prompts])
    text = " ".join(pick.choices(_WORDS, k=prompt.words))
    cancels = pick.random() < work.cancelled and work.output_tokens > 1
    after = pick.randint(1, work.output_tokens - 1) if cancels else None
    return RequestPlan(number, prompt, text, work.output_tokens, after)
