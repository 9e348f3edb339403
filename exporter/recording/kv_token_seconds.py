"""Estimate the KV cache that a stream held: tokens x seconds.

Input tokens are in the cache from the start of the prefill to the end of the stream, each output
token from its own time to that end.  A queued request holds none: engines allocate its blocks when
they schedule its prompt.  Only some responses carry the engine's queue time, so the time of others
begins at the first token: a wait in the queue may be long, and a prefill is short.

Output tokens are spread evenly from the first to the last one.  That is exact at an even pace and
needs no sum per token.  Servers that withhold text and send it late generate evenly too.
"""

from __future__ import annotations

from exporter.protocol.events import Stream


def kv_token_seconds(
    stream: Stream, input_tokens: float, output_tokens: float, end: float
) -> float:
    """Return the token-seconds of a stream with a first token that ended at ``end``."""
    begin = stream.first
    if stream.stages and stream.stages.queue is not None:
        begin = min(begin, stream.arrived + stream.stages.queue)
    end = max(end, stream.last)
    return integrate(input_tokens, output_tokens, (begin, stream.first, stream.last, end))


def integrate(
    input_tokens: float, output_tokens: float, times: tuple[float, float, float, float]
) -> float:
    """Integrate the tokens held from the beginning to the end.

    ``times`` are those of the beginning, of the first and the last output token, and of the end, in
    this order.
    """
    begin, first, last, end = times
    return input_tokens * (end - begin) + output_tokens * (end - (first + last) / 2)
