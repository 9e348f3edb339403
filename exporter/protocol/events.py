"""Interfaces of sans-I/O observers and of the listeners that they report to.

Observers are like the protocol parsers of h11 and h2: bytes, their direction and the time go in,
events come out.  They do no I/O and read no clock.  Events are method calls instead of objects,
because there is one for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from slos.outcomes import Outcome

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


@dataclass(frozen=True, slots=True)
class Stages:
    """The engine's own timing of a request in seconds; None where it reports none."""

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None


@dataclass(slots=True, eq=False)
class Stream:
    """One request and its response, streaming or not.

    The observer sets the fields up to ``silent_end``.  Strings are as received and may be anything.

    * ``arrived``: when the last byte of the request was seen, or the first byte of the response if
      that came earlier; in seconds of the observer's clock.
    * ``prompt``: a salted hash of the request, to recognise retries; 0 if unknown.
    * ``prompt_tokens``: the length of a prompt in tokens if the request has it tokenised;
      ``prompt_bytes``: the size of any other prompt's text.  None if unknown or not measured.
    * ``choices``: the requested number of choices.  Only the chunks of the first one are timed;
      ``other_chunks`` counts those of the others.
    * ``counted``: the server reported the number of output tokens.
    * ``silent_end``: the response may end without a marker on the wire.
    * ``opaque``: the response, or the rest of it, cannot be parsed, so its tokens are unknown;
      ``unread``: some of that has arrived.

    The listener sets the fields below.  ``first_tokens`` is the size of the first chunk in tokens,
    0 if the server does not report it.
    """

    endpoint: Endpoint
    model: str
    version: str = ""
    tenant: str = ""
    request_id: str = ""
    streaming: bool = False
    prompt: int = 0
    prompt_tokens: int | None = None
    prompt_bytes: int | None = None
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
    """Receive the events of observers; times are in seconds of one monotonic clock."""

    def started(self, stream: Stream, time: float) -> None:
        """Handle a complete request, or the start of its response if that comes earlier."""

    def chunk(self, stream: Stream, time: float, tokens: int) -> None:
        """Handle a chunk of a streaming response with text: at least one token.

        ``tokens`` is the server's token count of the chunk (continuous usage).  It is 0 if the
        server reports none; the chunk then counts as one token.
        """

    def closing(self, stream: Stream, time: float) -> None:
        """Handle the client's FIN: a disconnect, or only the end of its half.

        The outcome in ``ended`` decides which of the two it was.
        """

    def ended(
        self, stream: Stream, time: float, outcome: Outcome, reason: str, stopped: float | None
    ) -> None:
        """Handle the end of a request: always the last event of a stream that started.

        ``reason`` is that of the rule that recognised the outcome
        (:mod:`exporter.outcome_rules`).  With ``client_disconnected`` the client disconnected at
        the last ``closing`` (at ``time`` if there was none), and ``stopped`` is when the server
        last sent for the request or ended it, None if it did neither after the disconnect.
        """

    def lost(self, stream: Stream) -> None:
        """Discard a stream with missing bytes, and count it as lossy.

        The last event of that stream, and the only one if its request was not seen completely.
        """

    def blocked(self, stream: Stream) -> None:
        """Mark the client as not reading; ``backpressure`` follows when it reads again."""

    def backpressure(self, stream: Stream, seconds: float) -> None:
        """Record the seconds for which a client did not read the data ready for it."""

    def skipped(self, reason: str) -> None:
        """Count a request or connection that is not observed, by ``reason``."""


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """Settings of observers.

    ``tenant_header`` is a header's name in lower case, empty for none.  ``salt`` keys the hashes of
    prompts, so that they are of no use outside this process.  ``measure_prompts``: measure the
    length of prompts.
    """

    tenant_header: str = ""
    salt: bytes = b""
    measure_prompts: bool = False


class Observer(Protocol):
    """Observe one connection, whatever its protocol.

    After bytes that it cannot parse, an observer is ``inactive``: it ignores all further bytes.  No
    input makes it raise, loop or exceed its memory bound.  ``refusal`` is the reason why the bytes
    fed last are ambiguous, else empty.  A proxy must not forward ambiguous bytes, because the
    server could parse them differently (request smuggling).
    """

    @property
    def inactive(self) -> bool:
        """Whether the observer ignores all further bytes."""
        ...

    @property
    def refusal(self) -> str:
        """The reason why the bytes fed last must not be forwarded, empty if they may be."""
        ...

    def feed(self, direction: Direction, data: bytes, time: float, /) -> None:
        """Feed the next bytes of a direction."""

    def half_closed(self, direction: Direction, time: float) -> None:
        """Handle the FIN of a side."""

    def aborted(self, time: float) -> None:
        """Handle the client's disconnect (RST, or its half of the connection is lost)."""

    def server_lost(self, time: float) -> None:
        """Handle a server's reset, or a server that could not be reached."""

    def gap(self, direction: Direction, time: float) -> None:
        """Handle missing bytes of a direction, which end the affected streams as lost."""

    def blocked(self) -> None:
        """Mark the client as not reading; ``backpressure`` follows when it reads again."""

    def backpressure(self, seconds: float) -> None:
        """Record the seconds for which the client did not read the data ready for it."""

    def expire(self, time: float) -> None:
        """End requests whose client disconnected and whose server has gone silent."""

    @property
    def live(self) -> int:
        """The number of active requests."""
        ...
