"""What happens to a request on the wire, as observers tell it and listeners take it in.

Observers are like the protocol parsers of h11 and h2: bytes, their direction and the time go in,
events come out, and nothing here does I/O or reads a clock.  Events are calls instead of objects,
because there is one for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Direction = Literal[0, 1]
CLIENT: Direction = 0
"""Bytes from the client to the server."""
SERVER: Direction = 1
"""Bytes from the server to the client."""

Endpoint = Literal[
    "generate",
    "generate_stream",
    "chat",
    "completions",
    "responses",
    "messages",
    "sglang_generate",
    "model_infer",
    "model_stream_infer",
]
Outcome = Literal["ok", "error", "rejected", "timeout", "cancelled", "invalid", "disconnected"]
"""As in :data:`slos.signals.OUTCOMES`."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What the engine says of its own time, in seconds; None where it does not."""

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None


@dataclass(slots=True, eq=False)
class Stream:
    """One request and its answer, whether or not it comes in pieces.

    The observer fills in who asks for what, and what the server says of it; texts are as they came
    and may be anything.  ``arrived`` is when the last byte of the request was seen (the first byte
    of the answer if that came before), in seconds of the observer's clock.  ``prompt`` is a salted
    hash of what was asked, 0 where there is none: equal requests are told apart by nothing else.
    ``counted`` says that the number of output tokens is the server's own.  ``choices`` is how many
    answers were asked for; only the first one's chunks are timed, ``other_chunks`` counts those of
    the others.  ``silent_end`` says that the answer may end without a trace on the wire.
    ``opaque`` says that the answer, or the rest of it, cannot be read, so that nothing is known of
    its tokens; ``unread`` that some of it has come.

    Below that is the listener's: it measures by it and nobody else touches it.  ``first_tokens`` is
    how many tokens the first chunk had, 0 where the server does not say.
    """

    endpoint: Endpoint
    model: str
    version: str = ""
    tenant: str = ""
    request_id: str = ""
    streaming: bool = False
    prompt: int = 0
    choices: int = 1
    other_chunks: int = 0
    opaque: bool = False
    unread: bool = False
    arrived: float = 0.0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    counted: bool = False
    stages: Stages | None = None
    silent_end: bool = False

    first: float = 0.0
    first_tokens: int = 0
    last: float = 0.0
    max_gap: float = 0.0
    chunks: int = 0
    tokens: int = 0
    closing_at: float = 0.0


class Listener(Protocol):
    """Takes in what observers tell; times are in seconds of one clock that never goes back."""

    def started(self, stream: Stream, time: float) -> None:
        """Take in that a request has arrived whole, or that its answer has begun."""

    def chunk(self, stream: Stream, time: float, tokens: int) -> None:
        """Take in that a piece of the answer came that bears text, at least one token.

        ``tokens`` is how many the server says the piece has (continuous usage), 0 where it does
        not: then nobody knows, and a piece counts as one.  Only for streaming answers.
        """

    def closing(self, stream: Stream, time: float) -> None:
        """Take in that the client will send no more: it has left, or only closed its half.

        What comes after may be for nobody; ``ended`` tells.
        """

    def ended(
        self, stream: Stream, time: float, outcome: Outcome, reason: str, stopped: float | None
    ) -> None:
        """Take in that the request is over; always the last event of a stream that started.

        ``reason`` is the server's own word (finish reason, HTTP status, gRPC status name) or, where
        it has none, ours: ``in_band``, ``truncated``, ``reset``.  With ``disconnected`` the client
        left at the last ``closing`` (``time`` if there was none), and ``stopped`` is when the
        server was last seen to send for it or to end it, None where nothing was seen after.
        """

    def lost(self, stream: Stream) -> None:
        """Forget a stream of which bytes were not seen, and count it as lossy.

        The last event of that stream, and the only one if its request was not seen whole.
        """

    def blocked(self, stream: Stream) -> None:
        """Note that the client does not read; ``backpressure`` follows when it reads again."""

    def backpressure(self, stream: Stream, seconds: float) -> None:
        """Take in for how long a client did not read what was there for it."""

    def skipped(self, reason: str) -> None:
        """Take in that something was not understood and is left out; ``reason`` is one word."""


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """What observers need to know beside the bytes.

    ``tenant_header`` is a header's name in lower case, empty for none.  ``salt`` makes hashes of
    prompts useless to everybody else.
    """

    tenant_header: str = ""
    salt: bytes = b""


class Observer(Protocol):
    """Watches one connection, whichever protocol it speaks.

    After bytes that cannot be understood an observer is ``inactive``: it takes everything and tells
    nothing more.  Nothing that is fed makes it raise, loop or hold more than its bound.
    ``refusal`` is empty, or one word for why what the client sent may be read in two ways: whoever
    forwards must not pass on what was fed last, lest the server reads something else than is
    counted.
    """

    @property
    def inactive(self) -> bool:
        """Whether nothing more is understood."""
        ...

    @property
    def refusal(self) -> str:
        """Why what was fed last must not be passed on, empty if it may."""
        ...

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        """Take in the next bytes of a direction."""

    def half_closed(self, direction: Direction, time: float) -> None:
        """Take in that a side sent its FIN."""

    def aborted(self, time: float) -> None:
        """Take in that the client is gone for good (RST, or its end of the connection is lost)."""

    def server_lost(self, time: float) -> None:
        """Take in that the server reset the connection, or could not be reached."""

    def gap(self, direction: Direction, time: float) -> None:
        """Take in that bytes of a direction were not seen; streams they may belong to are lost."""

    def blocked(self) -> None:
        """Note that the client does not read; ``backpressure`` follows when it reads again."""

    def backpressure(self, seconds: float) -> None:
        """Take in for how long the client did not read what was there for it."""

    def expire(self, time: float) -> None:
        """End what waits for a server that says nothing more about a client that left."""

    @property
    def live(self) -> int:
        """How many requests are under way."""
        ...
