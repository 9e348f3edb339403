"""Settings of the load: arrivals, prompts, and the behaviour of the clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadtest.apis import Protocol


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A share of the requests that goes to another model, or to another version of a Triton model.

    A version is part of the path of Triton's ``generate_stream``; the other APIs have none.
    ``prompt_words`` are its lengths to choose from, by default those of all requests.
    """

    share: float
    model: str
    version: str = ""
    prompt_words: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Arrivals, prompts and client behaviour; times in seconds, shares from 0 to 1.

    Arrivals: ``rate`` requests per second are sent while fewer than ``concurrency`` clients are
    active, for ``seconds`` and at most ``requests`` in total, without retries.  A rate of 0 pauses
    the load until the next phase.  Requests go to ``model``, or to one of ``other_targets``.

    Prompts: ``prompt_words`` and ``max_tokens`` are lengths to choose from.  Prompts share
    prefixes: each begins with one of ``prefixes`` texts of ``prefix_words`` words.

    With ``include_usage`` each chunk of an OpenAI-compatible server has the token counts so far.

    Time-outs: a client closes a request that takes longer than ``request_seconds`` in total, or
    that receives nothing for ``idle_seconds``.

    Retries: a client repeats a request with the same prompt up to ``retries`` times after a
    time-out, a failure, a reset or HTTP 429.  It waits for ``backoff_seconds``, doubled for each
    further retry; a random factor between 0.5 and 1 spreads the retries.

    Shares, of which a request has at most one:

    - ``disconnect_before_first_token`` and ``disconnect_mid_stream`` leave at these phases
    - ``disconnect_by_age`` disconnect at an age between the two of ``disconnect_ages``
    - ``half_close_mid_stream`` send FIN, read nothing more, and reset ``half_close_seconds`` later:
      what a gateway does that half-closes its upstream connection when its client disconnects
    - ``slow_readers`` read ``reader_bytes_per_second``, over connections with small buffers
    - ``invalid`` have bad inputs
    - ``failing`` make the engine fail before or after their first token, ``failing_mid_stream``
      after it
    """

    rate: float = 2.5
    concurrency: int = 64
    seconds: float = 60.0
    requests: int = 10_000
    model: str = "tensorrt_llm"
    other_targets: tuple[LoadTarget, ...] = ()
    protocol: Protocol = "generate"
    prompt_words: tuple[int, ...] = (40, 120, 300, 700)
    max_tokens: tuple[int, ...] = (16, 60, 120, 240)
    prefixes: int = 4
    prefix_words: int = 32
    include_usage: bool = False
    request_seconds: float = 60.0
    idle_seconds: float = math.inf
    retries: int = 0
    backoff_seconds: float = 0.5
    disconnect_before_first_token: float = 0.03
    disconnect_mid_stream: float = 0.08
    disconnect_by_age: float = 0.0
    disconnect_ages: tuple[float, float] = (2.0, 4.0)
    half_close_mid_stream: float = 0.0
    half_close_seconds: float = 10.0
    slow_readers: float = 0.0
    reader_bytes_per_second: float = 500.0
    invalid: float = 0.02
    failing: float = 0.01
    failing_mid_stream: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError("the shares of clients' behaviours add up to more than 1")
        if sum(target.share for target in self.other_targets) > 1 + 1e-9:
            raise ValueError("the shares of other_targets add up to more than 1")

    @property
    def shares(self) -> dict[str, float]:
        """The shares of requests by client behaviour; the rest reads its stream to the end."""
        return {
            "disconnect_before_first_token": self.disconnect_before_first_token,
            "disconnect_mid_stream": self.disconnect_mid_stream,
            "disconnect_by_age": self.disconnect_by_age,
            "half_close_mid_stream": self.half_close_mid_stream,
            "slow_readers": self.slow_readers,
            "invalid": self.invalid,
            "failing": self.failing,
            "failing_mid_stream": self.failing_mid_stream,
        }


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """Settings from a time on, in seconds after the load's start.

    ``seconds``, ``requests`` and ``seed`` stay those of the load's first settings.
    """

    start: float
    settings: LoadSettings
