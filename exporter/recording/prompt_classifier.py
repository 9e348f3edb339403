"""Determine the prompt class of requests, once for each.

The number of tokens is, in this order:

* the server's own count, if it is known at that moment.  Responses have it at the end, and some
  streams before their first token;
* the length of a tokenised prompt in the request;
* an estimate: the bytes of the prompt's text / the bytes per token of the model's requests so far
  whose response had a count, ``BYTES_PER_TOKEN`` before the first one.
"""

from __future__ import annotations

from exporter.protocol.events import Stream

BYTES_PER_TOKEN = 4.0
"""A usual ratio of English text."""
_PRIOR_TOKENS = 2_000.0
"""The weight of ``BYTES_PER_TOKEN``, as if it were measured on this number of tokens."""
_MEMORY_TOKENS = 1_000_000.0
"""Tokens after which older requests lose weight."""
_LEAST_RATIO, _MOST_RATIO = 0.5, 32.0
"""Bytes per token beyond which a request is no evidence: its prompt holds more than text."""


class PromptLengths:
    """Estimate the input tokens of the requests of one model."""

    __slots__ = ("_bytes", "_tokens")

    def __init__(self) -> None:
        self._tokens = _PRIOR_TOKENS
        self._bytes = _PRIOR_TOKENS * BYTES_PER_TOKEN

    def tokens(self, stream: Stream) -> tuple[float | None, bool]:
        """Return the number of input tokens, None if unknown, and whether it is a count."""
        if stream.input_tokens is not None:
            return stream.input_tokens, True
        if stream.prompt_tokens is not None:
            return stream.prompt_tokens, True
        if stream.prompt_bytes is None:
            return None, False
        return stream.prompt_bytes * self._tokens / self._bytes, False

    def learn(self, stream: Stream) -> None:
        """Update the bytes per token by a request that ended."""
        size, tokens = stream.prompt_bytes, stream.input_tokens
        if not size or not tokens or not _LEAST_RATIO <= size / tokens <= _MOST_RATIO:
            return
        self._bytes += size
        self._tokens += tokens
        if self._tokens > _MEMORY_TOKENS:
            self._bytes /= 2
            self._tokens /= 2
