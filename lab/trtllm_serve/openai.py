"""What goes over the wire at /v1/completions and /v1/chat/completions, without the wire.

Other APIs build on it: :mod:`lab.trtllm_serve.typed_events`.

A prompt has as many tokens as words, and a token's text is its number.  Beside the fields of the
API a request may have ``fail_after``, which makes the engine fail it after that many tokens, and
``stop_after``, which ends it there as if the model had stopped.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.engine_events import EngineEvent
from lab.trtllm_serve.settings import ServeSettings

Json = dict[str, Any]

_DEFAULT_MAX_TOKENS = 16


class BadRequest(Exception):  # noqa: N818 - the API's own word for it
    """A request that does not fit the API; the text goes to the client."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The fields of a completion request."""

    model: str
    prompt: tuple[Hashable, ...]
    max_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    fail_after: int | None
    stops: bool


@dataclass(frozen=True, slots=True)
class Api:
    """One of the APIs; the functions make a choice of a chunk, and one of a whole answer.

    ``answer`` is the class of its answers, ``error`` makes the body of an error.
    """

    prefix: str
    whole: str
    chunk: str
    prompt: Callable[[Mapping[str, Any]], tuple[Hashable, ...]]
    chunk_choice: Callable[[str, str | None, float], Json]
    whole_choice: Callable[[str, str, float], Json]
    begins_with_role: bool
    answer: type[CompletionWriter]
    error: Callable[[str], Json]


def read(api: Api, body: bytes) -> CompletionRequest:
    """Read a request; BadRequest says what is wrong with it."""
    try:
        given = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"JSON decode error: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest("Input should be a valid dictionary")
    if given.get("n", 1) != 1:
        raise BadRequest("n must be 1 here")
    options = given.get("stream_options") or {}
    limits = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    limit = next((given[name] for name in limits if name in given), _DEFAULT_MAX_TOKENS)
    numbers = [limit, given.get("fail_after"), given.get("stop_after")]
    if any(type(number) is not int for number in numbers if number is not None) or limit is None:
        raise BadRequest("Input should be a valid integer")
    stop = given.get("stop_after")
    model = given.get("model")
    return CompletionRequest(
        model=model if isinstance(model, str) else "",
        prompt=api.prompt(given),
        max_tokens=limit if stop is None else min(limit, stop),
        stream=given.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        fail_after=given.get("fail_after"),
        stops=stop is not None and stop <= limit,
    )


class CompletionWriter:
    """Turns a request's events into what its client gets; one event of the engine at a time."""

    def __init__(self, api: Api, ask: CompletionRequest, settings: ServeSettings) -> None:
        self._api = api
        self._ask = ask
        self._settings = settings
        self._head = {
            "id": f"{api.prefix}-{uuid.uuid4().hex}",
            "object": api.chunk if ask.stream else api.whole,
            "created": int(time.time()),
            "model": ask.model or settings.model,  # it echoes whatever name it is asked for
        }
        self._tokens = self._iterations = 0
        self._cached = 0
        self._text = self._withheld = ""
        self.reason: str | None = None

    def error(self, message: str) -> Json:
        """Return the body of a response that is an error."""
        return self._api.error(message)

    def begin(self) -> bytes:
        """Return what a stream sends before there is a token."""
        return b""

    def failed(self) -> bytes:
        """Return what a stream sends when the engine failed; nothing where it only breaks off."""
        return b""

    def take(self, event: EngineEvent) -> bytes:
        """Handle an event; return the bytes that a stream sends for it, which may be none."""
        if event.index is not None:
            self._add(event.index)
        if event.final:
            self.reason = _reason(event, self._ask)
            self._text, self._withheld = self._text + self._withheld, ""
            self._cached = event.metrics.cached_tokens if event.metrics else 0
        if event.more:
            return b""
        self._iterations += 1
        if not self._ask.stream:
            return b""
        first, interval = self._iterations == 1, self._settings.stream_interval
        if not (first or event.final or self._iterations % interval == 0):
            return b""
        return (self._role() if first else b"") + self._chunk()

    def end(self) -> bytes:
        """Return what a stream sends after its last chunk."""
        usage = b""
        if self._ask.include_usage:
            usage = _event({**self._head, "choices": [], "usage": self._usage()})
        return usage + b"data: [DONE]\n\n"

    def whole(self) -> Json:
        """Return the answer to a request that is no stream."""
        choice = self._api.whole_choice(self._text, self.reason or "", self._pace())
        return {
            **self._head,
            "choices": [choice],
            "usage": self._usage(),
            "prompt_token_ids": None,
        }

    def _add(self, index: int) -> None:
        self._tokens += 1
        text, self._withheld = f"{self._withheld}token{index} ", ""
        if self._settings.withhold and self._tokens % self._settings.withhold == 0:
            # The detokenizer waits for the rest of a character.
            self._withheld = text
        else:
            self._text += text

    def _role(self) -> bytes:
        """Return the first chunk of a chat, which only says whose turn it is.

        It alone has a space before its end.
        """
        if not self._api.begins_with_role:
            return b""
        chunk = self._head | {
            "choices": [{"index": 0, "delta": {"role": "assistant"}}],
            **self._continuous_usage(0),
        }
        return _event(chunk, end=b" \n\n")

    def _chunk(self) -> bytes:
        text, self._text = self._text, ""
        choice = self._api.chunk_choice(text, self.reason, self._pace())
        usage = self._continuous_usage(self._tokens)
        if not self._api.begins_with_role:
            usage = {"usage": None} | usage
        return _event({**self._head, "choices": [choice], **usage})

    def _continuous_usage(self, tokens: int) -> Json:
        if not self._ask.continuous_usage:
            return {}
        return {"usage": _usage(len(self._ask.prompt), tokens)}

    def _usage(self) -> Json:
        usage = _usage(len(self._ask.prompt), self._tokens)
        return usage | {"prompt_tokens_details": {"cached_tokens": self._cached}}

    def _pace(self) -> float:
        return self._tokens / max(1, self._iterations)


def error(message: str, kind: str = "BadRequestError", code: int = 400) -> Json:
    """Return the body of a response that is an error."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def compact(data: Json) -> str:
    """Return JSON without spaces, as pydantic writes it."""
    return json.dumps(data, separators=(",", ":"))


def _reason(event: EngineEvent, ask: CompletionRequest) -> str | None:
    return "stop" if event.finish_reason == "length" and ask.stops else event.finish_reason


def _usage(prompt: int, output: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
    }


def _event(data: Json, end: bytes = b"\n\n") -> bytes:
    return b"data: " + compact(data).encode() + end


def no_choice(text: str, reason: str | None, pace: float) -> Json:
    """Refuse to make a choice: an API of typed events has none."""
    raise NotImplementedError


def _completion_prompt(body: Mapping[str, Any]) -> tuple[Hashable, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return tuple(prompt.split())
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return tuple(prompt)
    raise BadRequest("prompt: Input should be a string or a list of token ids")


def _chat_prompt(body: Mapping[str, Any]) -> tuple[Hashable, ...]:
    messages = body.get("messages")
    texts = [
        message.get("content") if isinstance(message, dict) else None
        for message in (messages if isinstance(messages, list) else [None])
    ]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("messages: Input should be a list of messages with text content")
    return tuple(word for text in texts for word in str(text).split())


def _completion_chunk(text: str, reason: str | None, pace: float) -> Json:
    return {
        "index": 0,
        "text": text,
        "token_ids": None,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "avg_decoded_tokens_per_iter": pace,
    }


def _completion_whole(text: str, reason: str, pace: float) -> Json:
    nulls = {"context_logits": None, "disaggregated_params": None}
    return _completion_chunk(text, reason, pace) | nulls


def _chat_chunk(text: str, reason: str | None, pace: float) -> Json:
    choice: Json = {
        "index": 0,
        "delta": {"content": text, "reasoning_content": ""},
        "avg_decoded_tokens_per_iter": pace,
    }
    return choice | ({"finish_reason": reason} if reason else {})


def _chat_whole(text: str, reason: str, pace: float) -> Json:
    return {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": text,
            "reasoning_content": None,
            "tool_calls": [],
        },
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "disaggregated_params": None,
        "avg_decoded_tokens_per_iter": pace,
    }


COMPLETIONS = Api(
    prefix="cmpl",
    whole="text_completion",
    chunk="text_completion",
    prompt=_completion_prompt,
    chunk_choice=_completion_chunk,
    whole_choice=_completion_whole,
    begins_with_role=False,
    answer=CompletionWriter,
    error=error,
)
CHAT = Api(
    prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    prompt=_chat_prompt,
    chunk_choice=_chat_chunk,
    whole_choice=_chat_whole,
    begins_with_role=True,
    answer=CompletionWriter,
    error=error,
)
