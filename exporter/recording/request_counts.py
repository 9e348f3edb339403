"""Count streams, disconnects, tokens and the KV cache of ended requests."""

from __future__ import annotations

from exporter.protocol.events import Stream
from exporter.recording.kv_token_seconds import kv_token_seconds
from exporter.recording.model_metrics import ModelMetrics
from slos.outcomes import Outcome


def _phase(stream: Stream, outcome: Outcome) -> str:
    if outcome == "ok":
        return "complete"
    return "mid_stream" if stream.chunks or stream.unread else "before_first_token"


def ended_without_token(stream: Stream, outcome: Outcome) -> bool:
    """Return whether a stream ended before its first token, empty responses included.

    An ``ok`` response is empty unless it had tokens that are not timed: of another choice, in a
    part that cannot be parsed, or without text.  The end of sequence counts as one token.
    """
    if stream.chunks or stream.unread:
        return False
    if outcome != "ok":
        return True
    return not (stream.other_chunks or stream.opaque or (stream.output_tokens or 0) > 1)


def count_stream(model: ModelMetrics, stream: Stream, outcome: Outcome, tenant: str) -> None:
    """Count the outcome of a stream and record its gap and decode times."""
    phase = _phase(stream, outcome)
    model.count("streams", {"outcome": outcome, "phase": phase}, tenant=tenant)
    if ended_without_token(stream, outcome):
        model.count("requests_without_first_token", {"outcome": outcome})
    if stream.chunks < 2 or stream.opaque:
        return
    model.observe("max_gap", stream.max_gap)
    if outcome != "ok":
        return
    model.observe("decode", stream.last - stream.first)
    tpot = seconds_per_token(stream)
    if tpot is not None:
        if not is_tpot_exact(stream):
            model.mark_estimated("tpot")
        model.observe("tpot", tpot)


def count_disconnect(model: ModelMetrics, stream: Stream, disconnected: float, tenant: str) -> None:
    """Count a client disconnect; ``stream`` is the state at that time."""
    if not stream.streaming:
        return
    model.count("disconnects", {"phase": _phase(stream, "client_disconnected")}, tenant=tenant)
    model.observe("disconnect_age", max(0.0, disconnected - stream.arrived))
    tokens = _output_tokens(stream)
    if tokens:
        if not stream.counted:
            model.mark_estimated("partial_tokens")
        model.count("partial_tokens", amount=tokens)


def count_tokens(model: ModelMetrics, stream: Stream, outcome: Outcome, tenant: str) -> None:
    """Count the tokens of a request; mark counts that the server did not report."""
    tokens = _output_tokens(stream)
    if not stream.counted and (tokens or outcome == "ok"):
        model.mark_estimated("output_tokens")
        model.end_zero_series("output_tokens")
    if tokens:
        model.count("output_tokens", amount=tokens, tenant=tenant)
    for signal, reported in (
        ("input_tokens", stream.input_tokens),
        ("cached_input_tokens", stream.cached_tokens),
    ):
        if reported is not None:
            model.count(signal, amount=reported, tenant=tenant)
        elif outcome == "ok":
            model.mark_estimated(signal)
            model.end_zero_series(signal)


def count_kv_cache(
    model: ModelMetrics, stream: Stream, end: float, outcome: Outcome, tenant: str
) -> None:
    """Count the KV cache that a stream held until ``end``, tokens after a disconnect included.

    Streams that end before their first token count nothing: most of them were queued.
    """
    if ended_without_token(stream, outcome) and (stream.streaming or outcome != "ok"):
        return
    tokens, is_count = model.prompt_lengths.tokens(stream)
    untimed = not stream.chunks or stream.opaque
    if untimed or not is_count or not stream.counted:
        model.mark_estimated("kv_token_seconds")
    if untimed or tokens is None:
        model.end_zero_series("kv_token_seconds")
        return
    held = kv_token_seconds(stream, tokens, _output_tokens(stream), end)
    model.count("kv_token_seconds", amount=held, tenant=tenant)


def observe_lengths(model: ModelMetrics, stream: Stream, outcome: Outcome) -> None:
    """Record the lengths of prompt and response if there are prompt classes.

    The bytes per token of prompts are learned in any case.
    """
    model.prompt_lengths.learn(stream)
    if not model.prompt_classes.labels:
        return
    tokens, is_count = model.prompt_lengths.tokens(stream)
    if not is_count:
        model.mark_estimated("input_length")
    if tokens is not None:
        model.observe("input_length", tokens)
    if outcome == "ok":
        if not stream.counted:
            model.mark_estimated("output_length")
        if output := _output_tokens(stream):
            model.observe("output_length", output)


def _output_tokens(stream: Stream) -> int:
    """Return the server's token count, else one token for each chunk with text."""
    if stream.counted and stream.output_tokens is not None:
        return stream.output_tokens
    return chunk_tokens(stream)


def chunk_tokens(stream: Stream) -> int:
    """Return the token count of the chunks, those of other choices included."""
    return stream.tokens + stream.other_chunks


def seconds_per_token(stream: Stream) -> float | None:
    """Return seconds per token after the first chunk; None if it cannot be measured.

    It cannot be measured for several choices, whose tokens are reported as a sum, or for a response
    in a single chunk.
    """
    if not stream.streaming or not stream.chunks or stream.choices > 1:
        return None
    tokens = _output_tokens(stream)
    if stream.chunks == 1 and tokens > 2:
        return None
    return (stream.last - stream.first) / max(1, tokens - max(1, stream.first_tokens))


def is_tpot_exact(stream: Stream) -> bool:
    """Return whether the first chunk's tokens are known, to 5 % of all or one token.

    A first chunk with many tokens (withheld by a tool call parser, speculative decoding) shows only
    with continuous usage.  One token without a chunk is the end of sequence.
    """
    if not stream.counted:
        return False
    tokens = _output_tokens(stream)
    return stream.first_tokens > 0 or tokens - stream.chunks <= max(1, tokens // 20)
